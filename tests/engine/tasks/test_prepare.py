"""Preparation makes what is missing, says how far it is, and costs nothing when all is there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.host.device import Device, Gpu, visible_gpus
from python_backend.engine.host.processor import instructions_for
from python_backend.engine.models import load_weights
from python_backend.engine.tasks import prepare as preparation
from python_backend.wire.errors import InflightError
from tests.pace import patience

# What is prepared for a GPU is little, and can be looked at without one.
packs = pytest.mark.usefixtures("cpu_kernels")

H200 = Gpu("NVIDIA H200", (9, 0))
COMPUTES_ON = f"the CPU, int8, {instructions_for('int8')}"
PROGRAM = [sys.executable, "-m", "python_backend.engine.tasks.prepare"]


@dataclass
class Prepared:
    status: int
    events: list[dict[str, Any]]
    complaint: str

    @property
    def stages(self) -> list[str]:
        return list(dict.fromkeys(event["stage"] for event in self.events if "stage" in event))


def result_of(process: subprocess.Popen[str]) -> Prepared:
    out, complaint = process.communicate(timeout=240)
    return Prepared(process.returncode, [json.loads(line) for line in out.splitlines()], complaint)


def start(model: Path, packed: Path, *python: str, **parameters: str) -> subprocess.Popen[str]:
    told = {"gpt_model_path": str(model), "inflight_packed_cache_dir": str(packed)}
    told |= {"inflight_device": "cpu", **parameters}
    return subprocess.Popen(
        [PROGRAM[0], *python, *PROGRAM[1:], json.dumps(told)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def prepare(model: Path, packed: Path, *python: str, **parameters: str) -> Prepared:
    return result_of(start(model, packed, *python, **parameters))


def prepare_here(model: Path, packed: Path, **parameters: str) -> list[str]:
    """Its stages, in this process: most of what another takes for so small a model are its imports."""
    said = StringIO()
    with redirect_stdout(said):
        preparation.prepare(told(model, packed, inflight_device="cpu", **parameters))
    events = [json.loads(line) for line in said.getvalue().splitlines()]
    return Prepared(0, events, "").stages


def packed_folders(packed: Path) -> list[Path]:
    return [path for path in packed.iterdir() if path.is_dir()]


def saved(path: Path, family: str, seed: int = 0) -> Path:
    """A checkpoint with random weights."""
    from tests.engine.checkpoints import random_model, save  # torch, only where these tests run

    return save(random_model(family, seed=seed), path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("llama"), "Llama")


@pytest.fixture(scope="module")
def kernels() -> Path:
    """Where the kernels are: compiled by an earlier run, or by the first of these tests."""
    from python_backend.engine.native import KERNELS

    return KERNELS


@pytest.fixture(scope="module")
def first(model: Path, packed: Path) -> Prepared:
    result = prepare(model, packed)
    assert result.status == 0, result.complaint
    return result


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `first` packed the model."""
    return tmp_path_factory.mktemp("packed")


@packs
def test_the_weights_are_packed_once_for_each_precision(model: Path, first: Prepared, packed: Path) -> None:
    packing = [event for event in first.events if event.get("stage") == "packing"]
    assert [(event["done"], event["total"]) for event in packing] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert {event["precision"] for event in packing} == {"int8"}
    assert prepare(model, packed).events == [{"inflight_device": "cpu", "computes_on": COMPUTES_ON}]
    other = prepare_here(model, packed, inflight_precision="int4")
    assert other == ["packing"], "the kernels are the same for every precision"
    assert len(packed_folders(packed)) == 2


@packs
@pytest.mark.usefixtures("first")
def test_a_complete_preparation_is_found_without_importing_anything_heavy(model: Path, packed: Path) -> None:
    again = prepare(model, packed, "-X", "importtime")
    assert again.stages == []
    assert "numba" not in again.complaint
    assert "numpy" not in again.complaint
    assert "python_backend.wire.parameters" in again.complaint


@packs
@pytest.mark.usefixtures("first")
def test_the_engine_finds_the_kernels_compiled(model: Path, packed: Path, kernels: Path) -> None:
    """A step of serving's own kind, many rows on many threads, must not compile anything more."""
    compiled = {path: path.stat().st_mtime_ns for path in kernels.rglob("*.nb[ci]")}
    assert compiled
    serve = f"""
from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.native.model import PARTS
from python_backend.engine.request import GenerationRequest
engine = build_engine(EngineConfig({str(model)!r}, threads=2, packed_cache_dir={str(packed)!r}))
for key in range(5):
    engine.add(key, GenerationRequest([1, 2, 3] * (key + 1), 4), 0)
while engine.has_work:
    engine.step()
for part in PARTS:
    assert sum(part.stats.cache_hits.values()) == 1, part.stats
    assert not part.stats.cache_misses, part.stats
"""
    subprocess.run([sys.executable, "-c", serve], check=True, timeout=120)
    assert {path: path.stat().st_mtime_ns for path in kernels.rglob("*.nb[ci]")} == compiled


@packs
@pytest.mark.usefixtures("first")
def test_deleted_packed_weights_are_made_again(model: Path, packed: Path, tmp_path: Path) -> None:
    (weights,) = (folder for folder in packed_folders(packed) if "int8" in folder.name)
    weights.rename(tmp_path / "moved-away")
    assert prepare_here(model, packed) == ["packing"]
    assert weights.is_dir()


@packs
def test_a_changed_checkpoint_is_packed_again_and_replaces_the_old_one(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "Llama")
    assert prepare_here(model, tmp_path / "packed") == ["packing"]
    saved(model, "Llama", seed=1)
    assert prepare_here(model, tmp_path / "packed") == ["packing"]
    assert len(packed_folders(tmp_path / "packed")) == 1


@packs
def test_two_preparations_at_once_pack_once(model: Path, tmp_path: Path) -> None:
    results = [result_of(process) for process in [start(model, tmp_path), start(model, tmp_path)]]
    assert [result.status for result in results] == [0, 0], results
    assert sorted("packing" in result.stages for result in results) == [False, True]


@packs
@pytest.mark.usefixtures("first")
def test_a_dense_model_of_another_family_needs_no_other_kernels(tmp_path: Path, kernels: Path) -> None:
    compiled = sorted(kernels.rglob("*.nbc"))
    other = saved(tmp_path / "model", "Gemma2")
    assert prepare_here(other, tmp_path / "packed") == ["packing"]
    assert sorted(kernels.rglob("*.nbc")) == compiled


@packs
def test_what_is_compiled_before_there_are_weights_is_what_a_model_runs(tmp_path: Path) -> None:
    from python_backend.engine.native.microkernel import Format
    from python_backend.engine.native.model import NativeModel
    from python_backend.engine.native.weights import blank_arrays, map_packed, write_packed

    for family in ("Llama", "Mixtral"):
        weights = load_weights(Checkpoint(saved(tmp_path / family, family)))
        for kind in Format:
            packed = tmp_path / f"{family}-{kind}"
            write_packed(weights, kind, packed)
            arrays = map_packed(packed, weights.shape, kind)
            for adapters in (0, 2):
                model = NativeModel(weights.shape, arrays, kind, 8, 16, 64, 2, adapters, adapters)
                blank = NativeModel(
                    weights.shape, blank_arrays(), Format.FP32, 1, 1, 1, 1, adapters, adapters
                )
                assert model.signatures == blank.signatures
                model.close()


def changed_config(model: Path, **changes: object) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changes))


@packs
def test_an_unknown_architecture_is_refused_in_our_own_words(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "Llama")
    changed_config(model, architectures=["PoemForCausalLM"])
    result = prepare(model, tmp_path / "packed")
    assert result.status == 1
    last = result.complaint.splitlines()[-1]
    assert last.startswith("unsupported: ")
    assert "is a PoemForCausalLM, which this engine does not support" in last
    assert not (tmp_path / "packed").exists()


@packs
def test_a_damaged_checkpoint_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "Llama")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4000])
    result = prepare(model, tmp_path / "packed")
    assert result.status == 1
    assert result.complaint.splitlines()[-1].startswith("invalid_request: ")
    assert "Traceback" not in result.complaint
    assert packed_folders(tmp_path / "packed") == []


@packs
def test_more_positions_than_the_model_has_are_refused_while_preparing(model: Path, tmp_path: Path) -> None:
    result = prepare(model, tmp_path, inflight_max_sequence_tokens="257")
    assert result.status == 2
    assert "inflight_max_sequence_tokens is '257'; allowed: 1 to 256" in result.complaint
    assert "Traceback" not in result.complaint


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "choose_device", lambda asked, gpu: Device(H200, gpu))


def told(model: Path, packed: Path, **parameters: str) -> dict[str, str]:
    return {"gpt_model_path": str(model), "inflight_packed_cache_dir": str(packed), **parameters}


@pytest.mark.usefixtures("on_a_gpu")
def test_preparing_for_a_gpu_packs_and_compiles_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preparation.prepare(told(model, tmp_path / "packed"))
    (tmp_path / "shapes").mkdir()
    shutil.copy(model / "config.json", tmp_path / "shapes")
    without_weights = told(tmp_path / "shapes", tmp_path / "packed", inflight_weights="random")
    preparation.prepare({**without_weights, "gpu_device_ids": "2", "inflight_precision": "fp8"})
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"inflight_device": "cuda", "computes_on": "GPU 0 (NVIDIA H200), bf16"},
        {"inflight_device": "cuda", "computes_on": "GPU 2 (NVIDIA H200), fp8"},
    ]
    assert not (tmp_path / "packed").exists()


@pytest.mark.usefixtures("on_a_gpu")
def test_a_model_that_a_gpu_cannot_serve_is_refused_while_preparing(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "Llama")
    with pytest.raises(InflightError, match=r"inflight_precision is 'int8'.*this machine computes on a GPU"):
        preparation.prepare(told(model, tmp_path, inflight_precision="int8"))
    with pytest.raises(InflightError, match="inflight_max_sequence_tokens is '257'; allowed: 1 to 256"):
        preparation.prepare(told(model, tmp_path, inflight_max_sequence_tokens="257"))
    with pytest.raises(InflightError, match="inflight_weights is 'random'; allowed: checkpoint for a GGUF"):
        preparation.prepare(told(model / "config.json", tmp_path, inflight_weights="random"))
    changed_config(model, architectures=["PoemForCausalLM"])
    for weights in ("checkpoint", "random"):
        with pytest.raises(InflightError, match="is a PoemForCausalLM"):
            preparation.prepare(told(model, tmp_path, inflight_weights=weights))


def test_random_weights_are_refused_without_loading_torch(model: Path) -> None:
    program = f"""import sys
sys.modules["torch"] = None
from python_backend.engine.checkpoint.shapes_only import ShapesOnly
from python_backend.engine.models import load_weights
load_weights(ShapesOnly({str(model)!r}))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=patience(60))


def test_an_unused_gpu_is_reported_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        preparation, "choose_device", lambda asked, gpu: Device(unused="torch is not installed in x")
    )
    monkeypatch.setattr(preparation, "_prepare_for_cpu", lambda parameters, settings: None)
    preparation.prepare(told(model, tmp_path))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events == [
        {"notice": "Computing on the CPU: there is a GPU, but torch is not installed in x"},
        {"inflight_device": "cpu", "computes_on": COMPUTES_ON},
    ]


@packs
def test_a_missing_gpu_is_refused_before_anything_is_made(model: Path, tmp_path: Path) -> None:
    if visible_gpus():
        pytest.skip("this machine has a GPU")
    result = prepare(model, tmp_path / "packed", inflight_device="cuda")
    assert result.status == 2
    assert result.complaint.startswith("unsupported: inflight_device is 'cuda', but no NVIDIA GPU")
    assert not (tmp_path / "packed").exists()


@packs
def test_leftovers_of_a_killed_preparation_are_removed_and_perplexitys_work_is_not(
    model: Path, tmp_path: Path
) -> None:
    left = tmp_path / ".0123456789ab-int8-0123456789abcdef.killed"
    working = tmp_path / ".perplexity-works"
    left.mkdir()
    working.mkdir()
    prepare_here(model, tmp_path)
    assert not left.exists()
    assert working.exists()
