"""Directories for their owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from router.store.private_directory import make_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    make_private(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o700


@pytest.mark.parametrize("mark", ["store.db", "run"])
def test_one_of_an_earlier_version_is_closed(tmp_path: Path, mark: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    (data / mark).touch()
    make_private(data)
    assert mode(data) == 0o700


def test_a_directory_of_the_users_own_is_left_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o750)
    (data / "thesis.tex").touch()
    make_private(data)
    assert mode(data) == 0o750
