"""Packed weights are found again while their checkpoint stays the same, and replaced when it does not."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from python_backend.engine.native.packed_model import FORMATS, load_packed, packed_dir, remove_abandoned
from python_backend.engine.native.tables import Arrays
from python_backend.wire.errors import InflightError
from tests.engine.native.test_weights import SmallWeights


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory


class Loads:
    """Loads packed weights and counts how often a checkpoint had to be read for them."""

    def __init__(self, packed_cache: Path) -> None:
        self.packed_cache = packed_cache
        self.layers_read = 0

    def __call__(self, checkpoint: Path, precision: str = "int8") -> Arrays:
        weights = SmallWeights(before_layer=self._count)
        return load_packed(weights, checkpoint, precision, self.packed_cache)

    def _count(self, index: int) -> None:
        self.layers_read += 1


@pytest.fixture
def load(tmp_path: Path) -> Loads:
    return Loads(tmp_path / "packed")


def test_the_second_load_reads_no_checkpoint(load: Loads, checkpoint: Path) -> None:
    first = load(checkpoint)
    assert load.layers_read == 3
    np.testing.assert_array_equal(load(checkpoint).attention.qkv, first.attention.qkv)
    assert load.layers_read == 3


def test_the_packed_folders_name_tells_the_checkpoints_path_and_state(
    tmp_path: Path, checkpoint: Path
) -> None:
    def name(precision: str = "int8") -> str:
        return packed_dir(checkpoint, precision, tmp_path).name

    before = name()
    assert name() == before
    assert len({name(precision) for precision in FORMATS}) == 3
    (checkpoint / "notes.txt").write_text("of no weight")
    assert name() == before
    (checkpoint / "model.safetensors").write_bytes(b"other weights")
    longer = name()
    assert longer != before
    os.utime(checkpoint / "model.safetensors", ns=(1, 1))
    older = name()
    assert older not in (before, longer)
    (checkpoint / "config.json").write_text('{"hidden_size": 40}')
    assert name() != older
    copied = shutil.copytree(checkpoint, tmp_path / "copied")
    place = packed_dir(copied, "int8", tmp_path).name.split("-")[0]
    assert place != before.split("-")[0]


def test_a_path_through_a_link_is_the_same_checkpoint(tmp_path: Path, checkpoint: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(checkpoint)
    assert packed_dir(link, "int8", tmp_path) == packed_dir(checkpoint, "int8", tmp_path)


def test_a_single_file_is_a_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    before = packed_dir(file, "int8", tmp_path)
    file.write_bytes(b"other weights")
    assert packed_dir(file, "int8", tmp_path) != before


def test_a_changed_checkpoint_replaces_only_its_own_packed_weights(
    load: Loads, checkpoint: Path, tmp_path: Path
) -> None:
    load(checkpoint)
    load(checkpoint, "int4")
    load(shutil.copytree(checkpoint, tmp_path / "copied"))
    before = set(os.listdir(load.packed_cache)) - {".packing"}
    assert len(before) == 3
    replaced = packed_dir(checkpoint, "int8", load.packed_cache).name
    (checkpoint / "model.safetensors").write_bytes(b"other weights")
    load(checkpoint)
    now = packed_dir(checkpoint, "int8", load.packed_cache).name
    assert set(os.listdir(load.packed_cache)) == before - {replaced} | {now, ".packing"}


def test_leftovers_of_a_killed_writer_are_dropped(load: Loads, checkpoint: Path) -> None:
    target = packed_dir(checkpoint, "int8", load.packed_cache)
    left_behind = load.packed_cache / f".{target.name}.killed"
    left_behind.mkdir(parents=True)
    load(checkpoint)
    assert not left_behind.exists()


def test_what_an_engine_is_packing_is_not_dropped_by_others(tmp_path: Path, checkpoint: Path) -> None:
    """A stack that starts looks for leftovers while the engine of another packs a release."""
    weights = SmallWeights(before_layer=lambda index: remove_abandoned(tmp_path))
    load_packed(weights, checkpoint, "int8", tmp_path)
    assert packed_dir(checkpoint, "int8", tmp_path).is_dir()


def test_only_half_packed_weights_are_dropped(tmp_path: Path) -> None:
    for name in (".half-packed", ".perplexity-works", ".perplexity-killed", "packed"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / ".perplexity-killed", (1, 1))
    (tmp_path / ".lock").write_text("")
    remove_abandoned(tmp_path)
    assert set(os.listdir(tmp_path)) == {".perplexity-works", "packed", ".lock", ".packing"}


def test_too_little_disk_space_is_reported_before_packing(
    load: Loads, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("python_backend.engine.native.packed_model.expected_bytes", lambda *_: 10**18)
    with pytest.raises(InflightError) as refused:
        load(checkpoint)
    message = refused.value.message
    assert message.startswith(f"{load.packed_cache} has ")
    assert "MB free; packing the weights as int8 needs at least 1,000,000,000,001 MB" in message
    assert "inflight_packed_cache_dir" in message
    assert load.layers_read == 0


def test_disk_space_that_runs_out_while_packing_is_reported(
    load: Loads, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(index: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(load, "_count", fill_the_disk)
    with pytest.raises(InflightError, match="MB free; packing the weights as int8 needs at least 1 MB"):
        load(checkpoint)
    assert os.listdir(load.packed_cache) == [".packing"]
