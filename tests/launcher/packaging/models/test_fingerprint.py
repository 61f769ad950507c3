"""A checkpoint is known by its contents, and hashed once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.packaging.models.checkpoint import Checkpoint
from launcher.packaging.models.fingerprint import CACHE_FILE, Fingerprint, fingerprint

if TYPE_CHECKING:
    from tests.launcher.conftest import RecordedProgress


def write_checkpoint(directory: Path) -> Checkpoint:
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(bytes(3 << 20))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (directory / name).write_text("{}")
    (directory / "README.md").write_text("words")
    return Checkpoint("tiny", directory, directory)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return write_checkpoint(tmp_path / "tiny")


def test_the_same_files_elsewhere_have_the_same_fingerprint(
    checkpoint: Checkpoint, tmp_path: Path, progress: RecordedProgress
) -> None:
    found = fingerprint(checkpoint, tmp_path, progress)
    elsewhere = write_checkpoint(tmp_path / "elsewhere")
    assert fingerprint(elsewhere, tmp_path, progress) == found
    assert found.weights_bytes == 3 << 20
    assert progress.done == (3 << 20) + 8


def test_a_hashed_checkpoint_is_not_hashed_again(
    checkpoint: Checkpoint, tmp_path: Path, progress: RecordedProgress
) -> None:
    found = fingerprint(checkpoint, tmp_path, progress)
    assert fingerprint(checkpoint, tmp_path, progress) == found
    assert progress.count("Hashing tiny") == 1


def test_a_change_with_an_old_timestamp_is_noticed(
    checkpoint: Checkpoint, tmp_path: Path, progress: RecordedProgress
) -> None:
    found = fingerprint(checkpoint, tmp_path, progress)
    weights = checkpoint.directory / "model.safetensors"
    facts = weights.stat()
    with weights.open("r+b") as file:
        file.write(b"\x01")
    os.utime(weights, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    changed = fingerprint(checkpoint, tmp_path, progress)
    assert changed.weights_sha256 != found.weights_sha256
    assert changed.tokenizer_sha256 == found.tokenizer_sha256


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "chat_template.jinja", "special_tokens_map.json"]
)
def test_a_changed_tokenizer_or_template_changes_the_fingerprint(
    name: str, checkpoint: Checkpoint, tmp_path: Path, progress: RecordedProgress
) -> None:
    found = fingerprint(checkpoint, tmp_path, progress)
    (checkpoint.directory / name).write_text('{"other": 1}')
    changed = fingerprint(checkpoint, tmp_path, progress)
    assert changed.weights_sha256 == found.weights_sha256
    assert changed.tokenizer_sha256 != found.tokenizer_sha256


def test_files_that_do_not_affect_answers_do_not_count(
    checkpoint: Checkpoint, tmp_path: Path, progress: RecordedProgress
) -> None:
    found = fingerprint(checkpoint, tmp_path, progress)
    (checkpoint.directory / "README.md").write_text("other words")
    assert fingerprint(checkpoint, tmp_path, progress) == found


def test_a_gguf_file_is_the_weights_and_its_directory_the_tokenizer(
    checkpoint: Checkpoint, tmp_path: Path, progress: RecordedProgress
) -> None:
    gguf = tmp_path / "tiny.gguf"
    gguf.write_bytes(b"GGUF")
    found = fingerprint(Checkpoint("tiny", checkpoint.directory, gguf), tmp_path, progress)
    assert found.weights_bytes == 4
    assert found.tokenizer_sha256 == fingerprint(checkpoint, tmp_path, progress).tokenizer_sha256


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"x": 1}'])
def test_a_damaged_fingerprint_cache_costs_only_time(
    text: str, checkpoint: Checkpoint, tmp_path: Path, progress: RecordedProgress
) -> None:
    found = fingerprint(checkpoint, tmp_path, progress)
    (tmp_path / CACHE_FILE).write_text(text)
    assert fingerprint(checkpoint, tmp_path, progress) == found
    assert progress.count("Hashing tiny") == 2


def test_the_cache_forgets_files_that_are_gone(
    checkpoint: Checkpoint, tmp_path: Path, progress: RecordedProgress
) -> None:
    fingerprint(checkpoint, tmp_path, progress)
    for file in checkpoint.directory.iterdir():
        file.unlink()
    fingerprint(write_checkpoint(tmp_path / "other"), tmp_path, progress)
    assert str(checkpoint.directory) not in (tmp_path / CACHE_FILE).read_text()


def test_without_a_writable_cache_a_checkpoint_is_still_hashed(
    checkpoint: Checkpoint, tmp_path: Path, progress: RecordedProgress
) -> None:
    (tmp_path / "file").write_text("no directory")
    assert isinstance(fingerprint(checkpoint, tmp_path / "file", progress), Fingerprint)
