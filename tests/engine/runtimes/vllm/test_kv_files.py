"""Keys and values in a folder: whole, of the right prompt, and gone when they are not needed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from python_backend.engine.runtimes.vllm.kv_files import KvFiles


def begun(files: KvFiles, of: str = "a") -> str:
    name = files.begin(of, 1)
    assert name is not None
    return name


def test_a_transfer_can_be_had_when_every_process_has_written_all_of_it(tmp_path: Path) -> None:
    files = KvFiles(tmp_path, 2)
    name = begun(files)
    files.finish(name, 0)
    assert not files.has(name, "a")
    files.finish(name, 1)
    assert files.has(name, "a")
    assert not files.has(name, "b"), "it is of another prompt"


def test_parts_are_read_in_the_order_of_their_blocks(tmp_path: Path) -> None:
    files = KvFiles(tmp_path, 2)
    name = begun(files)
    for first in (10, 0, 2):
        files.part(name, 0, first).touch()
    files.part(name, 1, 0).touch()
    assert [first for first, _ in files.parts(name, 0)] == [0, 2, 10]


@pytest.mark.parametrize("name", ["", "..", "../other", "0" * 31, "g" * 32, "/etc"])
def test_a_name_that_is_none_leads_nowhere(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "kv"
    folder.mkdir()
    (tmp_path / "other").mkdir()
    files = KvFiles(folder, 1)
    assert not files.has(name, "a")
    files.drop(name)
    assert (tmp_path / "other").is_dir()
    assert folder.is_dir()


def test_a_transfer_that_would_fill_the_disk_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    files = KvFiles(tmp_path, 1)
    assert files.begin("a", 51) is None
    assert files.begin("a", 50) is not None


def test_what_nobody_came_for_is_removed_by_its_age_and_nothing_else(tmp_path: Path) -> None:
    files = KvFiles(tmp_path, 1)
    old, new = begun(files), begun(files)
    (tmp_path / "another").mkdir()
    os.utime(tmp_path / old / "of", (1, 1))
    files.drop_older(time.time() - 60)
    assert {path.name for path in tmp_path.iterdir()} == {new, "another"}


def test_only_its_owner_can_open_a_transfer(tmp_path: Path) -> None:
    name = begun(KvFiles(tmp_path, 1))
    assert (tmp_path / name).stat().st_mode & 0o077 == 0
