"""`python -m python_backend.engine.tasks.prepare`: packs a model's weights and compiles the kernels.

That is for the CPU; a GPU loads the checkpoint as it is, and so do vLLM and TensorRT-LLM: only the question
whether they can is answered. A receipt beside the packed weights names what was made; while all of it is
there, nothing heavy is imported.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from python_backend.engine.host.cache_dir import cache_dir
from python_backend.engine.host.device import choose_device
from python_backend.engine.host.processor import instructions_for
from python_backend.engine.runtimes.choice import choose_runtime
from python_backend.engine.tasks.compilation import Compilation
from python_backend.engine.tasks.task import run_task, tell
from python_backend.wire.parameters import (
    DeviceSettings,
    EngineParameters,
    on_server,
    parse_engine_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NATIVE = Path(__file__).parents[1] / "native"


def prepare(told: Mapping[str, Any]) -> None:
    """`told` are the engine's parameters; tells on which device they compute, beside how far it is."""
    parameters = parse_engine_parameters(
        {"gpt_model_type": "inflight_fused_batching", **on_server(told, os.environ)}
    )
    runtime = choose_runtime(parameters)
    if runtime.environment is not None:  # a package reads the checkpoint as it is, when it is loaded
        precision = parameters.inflight_precision
        tell(
            inflight_runtime=runtime.name,
            inflight_device=runtime.device,
            inflight_precision=precision if precision != "auto" else "bf16",
            computes_on=runtime.computes_on,
        )
        return
    device = choose_device(parameters.inflight_device, parameters.gpu)
    settings = device.settings(parameters)
    if device.notice:
        tell(notice=device.notice)
    if device.kind == "cuda":
        _refuse_unfit_model(parameters)
        computes_on = f"{device}, {settings.precision}"
    else:
        _prepare_for_cpu(parameters, settings)
        computes_on = f"{device}, {settings.precision}, {instructions_for(settings.precision)}"
    tell(inflight_device=device.kind, computes_on=computes_on)


def _prepare_for_cpu(parameters: EngineParameters, settings: DeviceSettings) -> None:
    packed_cache = Path(parameters.inflight_packed_cache_dir or cache_dir() / "packed")
    receipt = packed_cache / f".prepared-{_fingerprint(parameters, settings)}"
    if _is_prepared(receipt):
        return
    packed_cache.mkdir(parents=True, exist_ok=True)
    with _alone(packed_cache):
        if not _is_prepared(receipt):
            _remove_stale_receipts(packed_cache)
            receipt.write_text(json.dumps([str(path) for path in _make(parameters, settings, packed_cache)]))


def _is_prepared(receipt: Path) -> bool:
    try:
        return all(map(os.path.exists, json.loads(receipt.read_text())))
    except (OSError, ValueError):
        return False


def _refuse_unfit_model(parameters: EngineParameters) -> None:
    """What the engine would refuse after all around it has been started."""
    from python_backend.engine.checkpoint import Checkpoint
    from python_backend.engine.checkpoint.shapes_only import ShapesOnly
    from python_backend.engine.models import load_weights, longest_sequence

    wanted = parameters.inflight_max_sequence_tokens
    is_random = parameters.inflight_weights == "random"
    model = (ShapesOnly if is_random else Checkpoint)(parameters.gpt_model_path)
    longest_sequence(load_weights(model, wanted).shape, wanted)


def _fingerprint(parameters: EngineParameters, settings: DeviceSettings) -> str:
    """Everything that packed weights, compiled kernels, or the refusal of a model depend on."""
    model = Path(parameters.gpt_model_path)
    files = sorted(model.iterdir()) if model.is_dir() else [model]
    facts: list[object] = [
        str(model.resolve()),
        str(_NATIVE),  # where numba is old, kernels are kept for the checkout they came from
        [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file()],
        settings.precision,
        parameters.inflight_max_sequence_tokens,
        _serves_adapters(parameters),
        importlib.metadata.version("numba"),
        sys.implementation.cache_tag,
        os.environ.get("NUMBA_CACHE_DIR") or str(cache_dir()),
        _processor(),
    ]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for path in sorted(_NATIVE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _serves_adapters(parameters: EngineParameters) -> bool:
    """Then the step is compiled with what they need."""
    return parameters.inflight_adapters_dir is not None and parameters.inflight_max_adapters != 0


def _processor() -> list[str]:
    """A folder of kernels may be shared by machines of several kinds; each has to compile its own."""
    telling = ("model name", "flags", "CPU part", "Features")
    try:
        return sorted(
            {line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(telling)}
        )
    except OSError:
        return []


@contextmanager
def _alone(packed_cache: Path) -> Iterator[None]:
    """Whoever else prepares into this folder is waited for."""
    with (packed_cache / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(stage="waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_stale_receipts(packed_cache: Path) -> None:
    for receipt in packed_cache.glob(".prepared-*"):
        if not _is_prepared(receipt):
            receipt.unlink(missing_ok=True)


def _make(parameters: EngineParameters, settings: DeviceSettings, packed_cache: Path) -> list[Path]:
    """Packs and compiles side by side, then builds an engine; returns what that left on disk."""
    from python_backend.engine.build import build_engine
    from python_backend.engine.checkpoint import Checkpoint
    from python_backend.engine.config import EngineConfig
    from python_backend.engine.models import load_weights
    from python_backend.engine.native.packed_model import load_packed, packed_dir
    from python_backend.engine.native.step import run_step

    checkpoint = Path(parameters.gpt_model_path)
    precision, block = settings.precision, settings.tokens_per_block

    def report(done: int, total: int) -> None:
        tell(stage="packing", precision=precision, done=done, total=total)

    packed = packed_dir(checkpoint, precision, packed_cache)
    weights = load_weights(Checkpoint(checkpoint), parameters.inflight_max_sequence_tokens)
    adapters = _serves_adapters(parameters)
    compilation = Compilation(weights.shape, adapters)
    if not packed.is_dir():
        report(0, weights.shape.layers + 1)
        load_packed(weights, checkpoint, precision, packed_cache, report)
    compilation.wait()
    build_engine(
        EngineConfig(
            str(checkpoint),
            max_tokens_in_kv_cache=2 * block,
            tokens_per_block=block,
            max_sequence_tokens=parameters.inflight_max_sequence_tokens,
            threads=1,
            precision=precision,
            packed_cache_dir=str(packed_cache),
            adapters_dir=parameters.inflight_adapters_dir,
            max_adapters=int(adapters),
        )
    )
    return [packed, Path(str(run_step.stats.cache_path))]


if __name__ == "__main__":
    sys.exit(run_task(prepare))
