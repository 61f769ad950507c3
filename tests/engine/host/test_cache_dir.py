"""What is compiled is kept where nobody else can put a program in its place."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_backend.engine.host.cache_dir import cache_dir, temporary_cache_dir


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder's usual name in a temporary directory of the test's own; the user's cannot be written."""
    (tmp_path / "cache").write_text("not a folder")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    temporary_cache_dir.cache_clear()
    yield tmp_path / "tmp" / f"inflight-{os.getuid()}"
    temporary_cache_dir.cache_clear()


def test_the_users_cache_folder_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "inflight"


def test_the_temporary_cache_directory_is_private_to_the_user(usual: Path) -> None:
    assert cache_dir() == usual
    assert stat.S_IMODE(usual.stat().st_mode) == 0o700
    temporary_cache_dir.cache_clear()
    assert cache_dir() == usual


def assert_avoided(usual: Path) -> None:
    chosen = cache_dir()
    assert chosen != usual
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o700
    assert cache_dir() == chosen, "one process uses one"


def test_a_cache_folder_writable_by_others_is_not_used(usual: Path) -> None:
    usual.mkdir()
    usual.chmod(0o777)
    assert_avoided(usual)


def test_a_linked_cache_folder_is_not_followed(usual: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    usual.symlink_to(tmp_path / "elsewhere")
    assert_avoided(usual)


def test_another_users_cache_folder_is_not_used(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody = os.getuid() + 1
    monkeypatch.setattr("os.getuid", lambda: somebody)
    theirs = usual.with_name(f"inflight-{somebody}")
    theirs.mkdir(mode=0o700)
    assert_avoided(theirs)
