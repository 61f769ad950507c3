"""`inflight release add`: what it writes, and what it refuses before it writes anything."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from tritonclient.grpc.model_config_pb2 import ModelConfig

from launcher.commands.release.addition import add_release
from launcher.console import SilentStage, StackConsole
from launcher.packaging.models import checkpoint as checkpoints
from launcher.packaging.models.checkpoint import local_checkpoint
from launcher.packaging.models.fingerprint import fingerprint
from launcher.packaging.models.manifest import sha256
from launcher.packaging.releases.builder import ReleaseRequest
from launcher.packaging.repository import read_config, read_parameters
from launcher.stack.stop_signals import StopSignals
from router.control.releases.commands import ReleaseCommands
from router.control.releases.records import Release
from router.control.releases.verification import find_tampering
from router.core.manifest import Kind, Manifest, from_json
from router.tenants.audited import AlreadyThere
from tests.fakes.file_server import COMMIT, file_server
from tests.launcher.commands.release.conftest import SYNTHETIC, Shell
from tests.launcher.commands.release.materials import (
    BERT,
    LLAMA,
    TENSORS_CONFIG,
    write_checkpoint,
    write_safetensors,
    write_sharded,
    write_triton_model,
)
from tests.launcher.conftest import RecordedProgress
from tests.launcher.stand_ins.tiny_model import write_gguf

STAND_IN = [sys.executable, str(Path(__file__).parents[2] / "stand_ins" / "prepare.py")]
STEPS = ("preprocessing", "tensorrt_llm", "postprocessing")


def config_of(inflight: Shell, name: str) -> ModelConfig:
    return read_config(inflight.repository / name / "config.pbtxt")


def version_dirs(inflight: Shell, name: str) -> list[str]:
    return [entry.name for entry in (inflight.repository / name).iterdir() if entry.is_dir()]


def add(inflight: Shell, order: ReleaseRequest, prepare: list[str] | None = None) -> Release:
    with inflight.opened() as ours:
        return add_release(order, ours, StackConsole(), StopSignals(), prepare_command=prepare or STAND_IN)


def test_a_checkpoint_becomes_four_triton_models_pinned_to_each_other(
    inflight: Shell, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    said = inflight("add", "tiny", str(checkpoint), *SYNTHETIC, "--version", "7", "--notes", "the first")
    assert "tiny@7 is added." in said
    assert "inflight release promote tiny@7" in said
    names = [f"tiny.7.{step}" for step in STEPS]
    assert sorted(entry.name for entry in inflight.repository.iterdir()) == sorted([*names, "tiny.7"])
    ensemble = config_of(inflight, "tiny.7")
    assert [(step.model_name, step.model_version) for step in ensemble.ensemble_scheduling.step] == [
        (name, 7) for name in names
    ]
    for name in (*names, "tiny.7"):
        assert config_of(inflight, name).name == name
        assert version_dirs(inflight, name) == ["7"]
    engine = read_parameters(inflight.repository / "tiny.7.tensorrt_llm" / "config.pbtxt")
    assert engine["gpt_model_path"] == engine["tokenizer_dir"] == str(checkpoint)
    assert engine["inflight_runtime"] == "synthetic"
    assert engine["inflight_packed_cache_dir"] == str(inflight.data_dir / "packed")
    for step in ("preprocessing", "postprocessing"):
        told = read_parameters(inflight.repository / f"tiny.7.{step}" / "config.pbtxt")
        assert told["tokenizer_dir"] == str(checkpoint)
        assert (inflight.repository / f"tiny.7.{step}" / "7" / "model.py").is_file()


def test_a_releases_manifest_describes_its_files_which_are_read_only(
    inflight: Shell, tmp_path: Path, progress: RecordedProgress
) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    inflight("add", "tiny", str(checkpoint), *SYNTHETIC)
    kept = inflight.release("tiny", 1)
    manifest = kept.manifest
    assert from_json((inflight.releases / "manifests" / "tiny@1.json").read_text()) == manifest
    assert manifest.members == (*(f"tiny.1.{step}" for step in STEPS), "tiny.1")
    assert (manifest.kind, manifest.engine, manifest.entry) == (Kind.TEXT, "tiny.1.tensorrt_llm", "tiny.1")
    assert manifest.parameters == {"inflight_runtime": "synthetic"}
    marks = {mark.path: mark for mark in manifest.files}
    weights = marks[str(checkpoint / "model.safetensors")]
    assert (weights.sha256, weights.bytes) == (sha256(Path(weights.path)), Path(weights.path).stat().st_size)
    assert str(checkpoint / "README.md") not in marks
    known_by = fingerprint(local_checkpoint(str(checkpoint)), tmp_path, progress)
    assert (manifest.weights_sha256, manifest.tokenizer_sha256) == (
        known_by.weights_sha256,
        known_by.tokenizer_sha256,
    ), "the same as a stack finds of a checkpoint that it brings"
    assert manifest.needs.weights_bytes == 107 * 4
    for path in inflight.releases.rglob("*.*"):
        if path.is_file() and path.name != ".lock":
            assert path.stat().st_mode & 0o222 == 0, path
    assert find_tampering(manifest, kept.digest, inflight.releases) is None


def test_the_engine_is_prepared_and_its_decisions_are_kept(inflight: Shell, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "tiny")
    made = add(
        inflight,
        ReleaseRequest("tiny", str(tmp_path / "tiny"), given={"max_tokens_in_paged_kv_cache": "100"}),
    )
    decided = {"inflight_device": "cpu", "inflight_precision": "int8", "max_tokens_in_paged_kv_cache": "100"}
    assert made.manifest.parameters == decided
    engine = read_parameters(inflight.repository / "tiny.1.tensorrt_llm" / "config.pbtxt")
    assert {key: engine[key] for key in decided} == decided
    # 2 layers, 2 heads of 12 values, keys and values, 4 bytes each.
    assert made.manifest.needs.cache_bytes == 100 * 2 * 2 * 12 * 2 * 4
    assert made.manifest.needs.weights_bytes == 107


def test_settings_of_the_engine_apply_and_the_command_line_wins(inflight: Shell, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "tiny")
    settings = tmp_path / "inflight.toml"
    settings.write_text(
        '[engine]\ninflight_runtime = "synthetic"\ninflight_threads = 3\ninflight_max_batch_size = 4\n'
        f'[router]\nstate_dir = "{tmp_path / "state"}"\n'
    )
    inflight("add", "m", str(tmp_path / "tiny"), "--config", str(settings), "--set", "inflight_threads=2")
    repository = tmp_path / "state" / "releases" / "repository"
    engine = read_parameters(repository / "m.1.tensorrt_llm" / "config.pbtxt")
    assert (engine["inflight_threads"], engine["inflight_max_batch_size"]) == ("2", "4")
    assert not inflight.releases.exists(), "releases lie in the state directory"


def test_a_gguf_file_is_prepared_for_real(inflight: Shell, tmp_path: Path, cpu_kernels: None) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    said = inflight(
        "add", "tiny", str(tmp_path / "tiny.gguf"),
        "--set", "inflight_device=cpu", "--set", "inflight_precision=int4",
    )  # fmt: skip
    assert "Packing the weights (int4)" in said
    manifest = inflight.release("tiny", 1).manifest
    assert manifest.parameters == {"inflight_device": "cpu", "inflight_precision": "int4"}
    engine = read_parameters(inflight.repository / "tiny.1.tensorrt_llm" / "config.pbtxt")
    assert engine["gpt_model_path"] == str(tmp_path / "tiny.gguf")
    assert manifest.checkpoint_dir == engine["tokenizer_dir"] != ""
    assert {Path(mark.path).name for mark in manifest.files} >= {"tiny.gguf", "tokenizer.json"}
    assert manifest.needs.weights_bytes > 0
    assert manifest.needs.cache_bytes == 1 << 30


def test_a_release_from_an_address_is_pinned_to_what_was_fetched(
    inflight: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with file_server(write_checkpoint(tmp_path / "tiny")) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        told = inflight("add", "tiny", "hf://org/tiny", *SYNTHETIC)
    assert f"hf://org/tiny@{COMMIT}" in told
    (manifest,) = (each["manifest"] for each in inflight.json("list"))
    assert manifest["source"] == f"hf://org/tiny@{COMMIT}"
    assert Path(manifest["checkpoint_dir"]).is_relative_to(inflight.data_dir / "models")
    assert "has not changed since it was added" in inflight("verify", "tiny@1")


def test_an_address_that_cannot_be_read_adds_nothing(inflight: Shell, tmp_path: Path) -> None:
    assert "file:///nowhere was not found" in inflight.refusal("add", "tiny", "file:///nowhere")
    assert "allowed are hf://" in inflight.refusal("add", "tiny", "ftp://host/model")


def test_shards_are_all_part_of_the_weights(inflight: Shell, tmp_path: Path) -> None:
    write_sharded(tmp_path / "tiny")
    inflight("add", "tiny", str(tmp_path / "tiny"), *SYNTHETIC)
    names = {Path(mark.path).name for mark in inflight.release("tiny", 1).manifest.files}
    assert {"one.safetensors", "two.safetensors", "model.safetensors.index.json"} <= names


def test_an_embedding_checkpoint_becomes_one_triton_model(inflight: Shell, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "bert", BERT)
    settings = tmp_path / "inflight.toml"
    settings.write_text('[engine]\ninflight_precision = "int4"\n[embeddings]\nthreads = 1\n')
    options = ("--config", str(settings), "--set")
    inflight("add", "vectors", str(checkpoint), *options, "inflight_precision=int8")
    manifest = inflight.release("vectors", 1).manifest
    assert (manifest.kind, manifest.members, manifest.engine) == (Kind.EMBEDDINGS, ("vectors.1",), "")
    assert version_dirs(inflight, "vectors.1") == ["1"]
    told = read_parameters(inflight.repository / "vectors.1" / "config.pbtxt")
    assert told["checkpoint_dir"] == str(checkpoint)
    assert (told["threads"], told["inflight_precision"]) == ("1", "int8")
    assert manifest.parameters == {"threads": "1", "inflight_precision": "int8"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["inflight_threads=1"], "has only the parameters threads, device, gpu_memory_share"),
        (["checkpoint_dir=/m"], "has only the parameters threads"),
        (["inflight_precision=int4"], "inflight_precision is 'int4'; allowed: auto, fp32, int8"),
        (["inflight_precision=int8", "device=cuda"], "allowed: auto, bf16 (device is cuda"),
    ],
)
def test_a_wrong_parameter_of_an_embedding_model_is_refused_before_anything_is_written(
    inflight: Shell, tmp_path: Path, given: list[str], said: str
) -> None:
    checkpoint = write_checkpoint(tmp_path / "bert", BERT)
    options = [word for each in given for word in ("--set", each)]
    assert said in inflight.refusal("add", "vectors", str(checkpoint), *options)
    assert not (inflight.repository / "vectors.1").exists()


def test_a_triton_model_is_copied_with_its_whole_version_directory(inflight: Shell, tmp_path: Path) -> None:
    source = write_triton_model(tmp_path / "doubling")
    inflight("add", "twice", str(source), "--version", "3")
    model = inflight.repository / "twice.3"
    found = sorted(path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file())
    assert found == ["3/deeper/table.bin", "3/model.py", "config.pbtxt", "labels.txt"]
    assert (model / "3" / "model.py").read_text() == "VERSION = 10\n"
    config = config_of(inflight, "twice.3")
    assert (config.name, config.HasField("version_policy"), config.max_batch_size) == ("twice.3", False, 8)
    inflight("add", "twice", str(source), "--from-version", "2", "--set", "factor=4")
    assert (inflight.repository / "twice.4" / "4" / "model.py").read_text() == "VERSION = 2\n"
    assert config_of(inflight, "twice.4").parameters["factor"].string_value == "4"
    kept = inflight.release("twice", 4)
    assert kept.manifest.kind is Kind.TENSORS
    assert find_tampering(kept.manifest, kept.digest, inflight.releases) is None


def test_adding_the_same_release_again_succeeds_and_says_so(inflight: Shell, tmp_path: Path) -> None:
    checkpoint, model = write_checkpoint(tmp_path / "tiny"), write_triton_model(tmp_path / "doubling")
    for name, path in (("tiny", checkpoint), ("twice", model)):
        given = SYNTHETIC if name == "tiny" else ()
        inflight("add", name, str(path), *given)
        assert f"It differs from {name}@1 only in its number." in inflight("add", name, str(path), *given)
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 4"))
    assert "It differs from" not in inflight("add", "twice", str(model)), "it batches in another way"
    write_checkpoint(tmp_path / "other", fill=1)
    assert "It differs from" not in inflight("add", "tiny", str(tmp_path / "other"), *SYNTHETIC)


def truncated(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def too_long(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"\0")


def without_header(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"\xff" * 100)


def odd_header(directory: Path) -> None:
    text = b'{"a": {"dtype": "F32"}}'
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)


def without_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def without_a_shard(directory: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "gone.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def shard_elsewhere(directory: Path) -> None:
    write_safetensors(directory.parent / "x.safetensors", {"a": (1,)})
    index = {"weight_map": {"a": "../x.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def other_name(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "weights.safetensors")


def without_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()


def half_a_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text('{"version": ')


def half_a_config(directory: Path) -> None:
    (directory / "config.json").write_text('{"model_type": ')


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncated, "model.safetensors is truncated: it has"),
        (too_long, "model.safetensors is longer than expected"),
        (without_header, "does not begin with a safetensors header"),
        (odd_header, "model.safetensors cannot be read"),
        (without_weights, "it has no *.safetensors"),
        (without_a_shard, "it has no gone.safetensors"),
        (shard_elsewhere, "names weights outside its own directory"),
        (other_name, "has neither model.safetensors nor model.safetensors.index.json"),
        (without_tokenizer, "it has no tokenizer.json"),
        (half_a_tokenizer, "tokenizer.json cannot be read"),
        (half_a_config, "config.json cannot be read"),
    ],
)
def test_a_broken_checkpoint_is_refused_and_leaves_nothing_behind(
    damage: Any, words: str, inflight: Shell, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    damage(checkpoint)
    assert words in inflight.refusal("add", "tiny", str(checkpoint), *SYNTHETIC)
    assert inflight.files() in ([], [".lock"])
    assert inflight.json("list") == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('name: "x" backend: ', "config.pbtxt"),
        ("no such field: 1", "config.pbtxt"),
        (TENSORS_CONFIG.replace('"python"', '"onnxruntime"'), "it has no 10/model.onnx"),
        (TENSORS_CONFIG.replace('"python"', '"pytorch"'), "needs the backend 'pytorch'"),
        ('name: "x" platform: "tensorrt_plan"', "needs the backend 'tensorrt'"),
        ('backend: "python" instance_group { name: "my group" }', "instance_group with the name 'my group'"),
        ('name: "x" platform: "ensemble"', "is an ensemble, whose steps are models of their own"),
        ('name: "x" backend: "python" default_model_filename: "other.py"', "it has no 10/other.py"),
    ],
)
def test_a_triton_model_that_cannot_be_loaded_here_is_refused(
    config: str, words: str, inflight: Shell, tmp_path: Path
) -> None:
    source = write_triton_model(tmp_path / "doubling", config)
    assert words in inflight.refusal("add", "twice", str(source))
    assert inflight.files() in ([], [".lock"])


def test_a_triton_model_without_a_version_or_with_odd_files_is_refused(
    inflight: Shell, tmp_path: Path
) -> None:
    source = write_triton_model(tmp_path / "doubling")
    assert "has no version 5" in inflight.refusal("add", "twice", str(source), "--from-version", "5")
    (source / "10" / "broken").symlink_to("nowhere")
    assert "is neither a file nor a directory" in inflight.refusal("add", "twice", str(source))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.pbtxt").write_text(TENSORS_CONFIG)
    assert "has no version directory" in inflight.refusal("add", "twice", str(tmp_path / "empty"))
    assert inflight.files() == [".lock"]


def test_links_are_followed_and_those_that_lead_in_a_circle_are_refused(
    inflight: Shell, tmp_path: Path
) -> None:
    source = write_triton_model(tmp_path / "doubling")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "weights.bin").write_bytes(b"1234")
    (source / "10" / "linked").symlink_to(tmp_path / "elsewhere")
    inflight("add", "twice", str(source))
    copied = inflight.repository / "twice.1" / "1" / "linked" / "weights.bin"
    assert (copied.read_bytes(), copied.parent.is_symlink()) == (b"1234", False)
    for target in ("..", ".", "../.."):
        (tmp_path / "elsewhere" / "round").symlink_to(source / "10" / target)
        assert "links back to a directory that contains it" in inflight.refusal("add", "twice", str(source))
        (tmp_path / "elsewhere" / "round").unlink()


def test_executable_files_stay_executable_in_a_release(inflight: Shell, tmp_path: Path) -> None:
    source = write_triton_model(tmp_path / "doubling")
    (source / "triton_python_backend_stub").write_text("#!/bin/sh\n")
    (source / "triton_python_backend_stub").chmod(0o755)
    inflight("add", "twice", str(source))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (inflight.repository / "twice.1").iterdir()}
    assert (modes["triton_python_backend_stub"], modes["labels.txt"]) == (0o500, 0o400)


def test_a_directory_with_a_leading_zero_is_not_a_version(inflight: Shell, tmp_path: Path) -> None:
    source = write_triton_model(tmp_path / "doubling")
    (source / "010").mkdir()
    (source / "010" / "model.py").write_text("VERSION = 0\n")
    inflight("add", "twice", str(source))
    model = inflight.repository / "twice.1"
    assert (model / "1" / "model.py").read_text() == "VERSION = 10\n"
    assert (model / "010" / "model.py").read_text() == "VERSION = 0\n"


def test_a_version_number_is_not_reused(inflight: Shell, tmp_path: Path) -> None:
    source = str(write_triton_model(tmp_path / "doubling"))
    inflight("add", "twice", source)
    inflight("remove", "twice@1")
    assert "version numbers are never reused" in inflight.refusal("add", "twice", source, "--version", "1")
    assert "twice@2 is added" in inflight("add", "twice", source)


def test_a_models_backend_is_recognised_from_its_file(inflight: Shell, tmp_path: Path) -> None:
    source = write_triton_model(tmp_path / "doubling", TENSORS_CONFIG.replace('backend: "python"', ""))
    inflight("add", "twice", str(source))
    for version in ("2", "10"):
        (source / version / "model.py").rename(source / version / "model.pt")
    assert "needs the backend 'pytorch'" in inflight.refusal("add", "twice", str(source))
    (source / "libtriton_pytorch.so").write_text("")
    assert "is added" in inflight("add", "twice", str(source)), "it brings the backend along"


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["../m", "{tiny}"], "'../m' cannot be the name of a model"),
        (["M", "{tiny}"], "'M' cannot be the name of a model"),
        (["m", "nowhere"], "'nowhere' does not exist; a release is made from a known model"),
        (["m", "{here}"], "has neither config.json nor config.pbtxt"),
        (["m", "{tiny}", "--set", "nonsense"], "--set 'nonsense': expected PARAMETER=VALUE"),
        (["m", "{tiny}", "--set", "nonsense=1"], "--set: unknown parameter nonsense"),
        (["m", "{tiny}", "--set", "gpt_model_path=/x"], "the launcher sets this"),
        (["m", "{tiny}", "--set", "inflight_precision=int3"], "parameter inflight_precision is 'int3'"),
        (["m", "{tiny}", "--from-version", "1"], "--from-version is for a directory with a Triton model's"),
        (["m", "{tiny}", "--config", "nowhere.toml"], "nowhere.toml cannot be read"),
    ],
)
def test_a_refused_release_is_reported_in_one_line(
    words: list[str], refusal: str, inflight: Shell, tmp_path: Path
) -> None:
    places = {"tiny": write_checkpoint(tmp_path / "tiny"), "here": tmp_path}
    assert refusal in inflight.refusal("add", *(word.format_map(places) for word in words))
    assert not list(inflight.repository.glob("*"))


def test_a_taken_version_and_a_different_kind_are_refused_before_the_work(
    inflight: Shell, tmp_path: Path
) -> None:
    checkpoint, model = write_checkpoint(tmp_path / "tiny"), write_triton_model(tmp_path / "doubling")
    inflight("add", "tiny", str(checkpoint), *SYNTHETIC)
    before = inflight.files()
    refusal = inflight.refusal("add", "tiny", str(checkpoint), *SYNTHETIC, "--version", "1")
    assert "tiny@1 already exists, and releases never change" in refusal
    assert "tiny is a model for text" in inflight.refusal("add", "tiny", str(model))
    assert inflight.files() == before


@pytest.mark.parametrize(
    ("precision", "status", "words"),
    [("bf16", 2, "allowed: int8"), ("fp32", 2, "this model is a poem")],
)
def test_a_precision_that_the_engine_refuses_is_reported_and_leaves_nothing_behind(
    precision: str,
    status: int,
    words: str,
    inflight: Shell,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_checkpoint(tmp_path / "tiny")
    with pytest.raises(typer.Exit) as ended:
        add(inflight, ReleaseRequest("tiny", str(tmp_path / "tiny"), given={"inflight_precision": precision}))
    assert ended.value.exit_code == status
    assert words in capsys.readouterr().err
    assert inflight.files() == [".lock"]


def test_an_engine_that_dies_is_reported_and_leaves_nothing_behind(
    inflight: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREPARE_DIES", "1")
    write_checkpoint(tmp_path / "tiny")
    with pytest.raises(typer.Exit) as ended:
        add(inflight, ReleaseRequest("tiny", str(tmp_path / "tiny")))
    assert ended.value.exit_code == 1
    assert "ended with signal 9" in capsys.readouterr().err
    assert inflight.files() == [".lock"]


class CtrlC(StackConsole):
    """A user who stops what he sees being done."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at

    @contextmanager
    def stage(
        self, label: str, total_bytes: int | None = None, total_steps: int | None = None
    ) -> Iterator[SilentStage]:
        if label.startswith(self._at):
            signal.raise_signal(signal.SIGINT)
        yield SilentStage()


@pytest.mark.parametrize("at", ["Hashing weights", "Packing", "Compiling", "Hashing the Triton models"])
def test_ctrl_c_leaves_nothing_behind(at: str, inflight: Shell, tmp_path: Path) -> None:
    order = ReleaseRequest("tiny", str(write_checkpoint(tmp_path / "tiny")))
    with inflight.opened() as ours, pytest.raises(KeyboardInterrupt):
        add_release(order, ours, CtrlC(at), StopSignals(), prepare_command=STAND_IN)
    assert inflight.files() == [".lock"]
    assert not list(inflight.releases.glob(".work-*"))
    assert inflight.json("list") == []


def test_ctrl_c_is_reported_by_the_command(
    inflight: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.console.StackConsole", partial(CtrlC, "Hashing weights"))
    result = inflight.ask("add", "tiny", str(write_checkpoint(tmp_path / "tiny")), *SYNTHETIC)
    assert result.exit_code == 130
    assert "Stopped: nothing was added." in result.output


def test_a_stop_during_registration_comes_too_late(
    inflight: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_add = ReleaseCommands.add

    def interrupted(self: ReleaseCommands, manifest: Manifest, notes: str = "") -> Release:
        signal.raise_signal(signal.SIGINT)
        return true_add(self, manifest, notes)

    monkeypatch.setattr(ReleaseCommands, "add", interrupted)
    inflight("add", "tiny", str(write_checkpoint(tmp_path / "tiny")), *SYNTHETIC)
    assert inflight.release("tiny", 1).manifest.members[-1] == "tiny.1"


def test_a_release_that_cannot_be_registered_is_removed_again(
    inflight: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ReleaseCommands, manifest: Manifest, notes: str = "") -> Release:
        assert (inflight.repository / "tiny.1").is_dir()
        raise AlreadyThere("a router was quicker")

    monkeypatch.setattr(ReleaseCommands, "add", refuse)
    checkpoint = write_checkpoint(tmp_path / "tiny")
    assert "a router was quicker" in inflight.refusal("add", "tiny", str(checkpoint), *SYNTHETIC)
    assert inflight.files() == [".lock"]


def test_leftovers_of_a_killed_add_do_not_block_the_next(inflight: Shell, tmp_path: Path) -> None:
    for left in (inflight.repository / "tiny.1" / "1", inflight.releases / ".work-x" / "tiny.1"):
        left.mkdir(parents=True)
        (left / "stale").write_text("")
    inflight("add", "tiny", str(write_checkpoint(tmp_path / "tiny")), *SYNTHETIC)
    assert not [name for name in inflight.files() if "stale" in name]
    assert inflight("verify", "tiny@1").startswith("tiny@1 has not changed since it was added")


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (ENDLESS, "the chat template cannot be rendered: it does not come to an end in time"),
        ("{% for %}", "the chat template does not compile"),
        ("{% set a = [1] %}" + "{% set a = [a, a] %}" * 60 + "{{ a }}", "it makes a value of"),
    ],
)
def test_a_checkpoint_whose_chat_template_cannot_be_rendered_is_refused(
    inflight: Shell, tmp_path: Path, template: str, said: str
) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    (checkpoint / "chat_template.jinja").write_text(template)
    assert said in inflight.refusal("add", "tiny", str(checkpoint), *SYNTHETIC)
    assert inflight.files() == [".lock"]


def test_a_template_that_refuses_some_chats_is_not_refused(inflight: Shell, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    (checkpoint / "chat_template.jinja").write_text("{{ raise_exception('only pairs of texts') }}")
    inflight("add", "tiny", str(checkpoint), *SYNTHETIC)


def test_a_rerankers_template_that_never_ends_is_refused_in_time(
    inflight: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECK_S", 15.0)
    more = {"intermediate_size": 16, "vocab_size": 30, "rms_norm_eps": 1e-6, "rope_theta": 1e4}
    scores = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    checkpoint = write_checkpoint(tmp_path / "judge", {**LLAMA, **more, **scores})
    (checkpoint / "chat_template.jinja").write_text(ENDLESS + "{# 'query' 'document' #}")
    assert "without an end" in inflight.refusal("add", "judge", str(checkpoint))
