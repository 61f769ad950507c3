"""Damage to a checkpoint is noticed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from launcher.packaging.models.manifest import MANIFEST, find_damage, write_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.launcher.conftest import RecordedProgress


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(bytes(3 << 20))
    (tmp_path / "config.json").write_text("{}")
    write_manifest(tmp_path, "here")
    return tmp_path


def test_an_untouched_checkpoint_is_whole(checkpoint: Path, progress: RecordedProgress) -> None:
    assert find_damage(checkpoint, "here", progress) is None


def test_a_truncated_file_is_noticed(checkpoint: Path, progress: RecordedProgress) -> None:
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 20)
    damage = find_damage(checkpoint, "here", progress)
    assert damage == "model.safetensors has 1048576 bytes instead of 3145728"


def test_one_flipped_bit_is_noticed(checkpoint: Path, progress: RecordedProgress) -> None:
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(2_000_000)
        file.write(b"\x01")
    damage = find_damage(checkpoint, "here", progress)
    assert damage == "model.safetensors has changed since it was written"


def test_a_missing_file_is_noticed(checkpoint: Path, progress: RecordedProgress) -> None:
    (checkpoint / "config.json").unlink()
    assert find_damage(checkpoint, "here", progress) == "config.json is missing"


def test_a_checkpoint_made_from_another_source_is_noticed(
    checkpoint: Path, progress: RecordedProgress
) -> None:
    assert find_damage(checkpoint, "there", progress) == "it was made from 'here', not 'there'"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"source": "here"}', json.dumps({"source": 1, "files": [1]})]
)
def test_an_unreadable_manifest_is_damage(text: str, checkpoint: Path, progress: RecordedProgress) -> None:
    (checkpoint / MANIFEST).write_text(text)
    assert find_damage(checkpoint, "here", progress) == f"{MANIFEST} cannot be read"


def test_a_missing_manifest_is_damage(checkpoint: Path, progress: RecordedProgress) -> None:
    (checkpoint / MANIFEST).unlink()
    assert find_damage(checkpoint, "here", progress) == f"{MANIFEST} is missing"
