"""What replicas of a model cost and can do on each kind of GPU, and where each figure comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from python_backend.costs.step_cost import StepCost
from simulator.fleet.state import ReplicaShape
from simulator.planning.silicon import Derived, ModelShape, SiliconTables, TablesError

FOLDER = Path(__file__).parents[1] / "profiles"
MODELS = {
    "llama-8b": ModelShape(32, 4096, 14336, 32, 8, 128256),
    "llama-70b": ModelShape(80, 8192, 28672, 64, 8, 128256),
}
PRECISION_BYTES = {"bf16": 2, "fp8": 1}
# The engine's own settings on a GPU.
SLOTS, STEP_TOKENS = 512, 4096
# Of a GPU's memory, for weights and cache; the rest is for what steps compute with.
_MEMORY_SHARE = 0.85
MEASURED = "measured"


@dataclass(frozen=True)
class Profile:
    """One replica: `tensor_parallel` GPUs of a kind. measured up to `most_batch` and `most_context`."""

    gpu: str
    model: str
    precision: str
    tensor_parallel: int
    base_ms: float
    prefill_token_ms: float
    decode_sequence_ms: float
    kv_kilotoken_ms: float
    kv_tokens: int
    weights_gb: float
    most_batch: int
    most_context: int
    fit_error: float
    origin: str
    is_extrapolated: bool = False
    even_context: int | None = None  # behind so many, a prompt's token takes twice as long

    @property
    def cost(self) -> StepCost:
        return StepCost(self.base_ms, self.prefill_token_ms, self.decode_sequence_ms, self.kv_kilotoken_ms)

    @property
    def name(self) -> str:
        return f"{self.tensor_parallel} x {self.gpu} {self.precision}"

    @property
    def is_measured(self) -> bool:
        return self.origin.startswith(MEASURED)

    def shape(self, slots: int = SLOTS, step_tokens: int = STEP_TOKENS) -> ReplicaShape:
        return ReplicaShape(self.cost, slots, step_tokens, self.kv_tokens, even_context=self.even_context)

    def start_s(self, fixed_s: float, gb_per_s: float) -> float:
        """A cold start: the process, and its weights from wherever they lie."""
        return fixed_s + self.weights_gb / gb_per_s


def known_profiles(folder: Path = FOLDER) -> list[Profile]:
    """Those that come with the product; of the same replica the measured one is first."""
    found = [
        Profile(**each) for path in sorted(folder.glob("*.json")) for each in json.loads(path.read_text())
    ]
    return sorted(found, key=lambda each: (each.model, each.gpu, each.name, not each.is_measured))


def best_of(profiles: Iterable[Profile]) -> list[Profile]:
    """One for each kind of replica: what was measured with this engine before what was derived."""
    first: dict[tuple[str, str, str, int], Profile] = {}
    for each in sorted(profiles, key=lambda each: not each.is_measured):
        first.setdefault((each.model, each.gpu, each.precision, each.tensor_parallel), each)
    return list(first.values())


def kv_tokens(model: ModelShape, memory_bytes: float, precision: str, parallel: int) -> int:
    weights = model.weights * PRECISION_BYTES[precision]
    return int((_MEMORY_SHARE * memory_bytes * parallel - weights) / model.kv_bytes)


def derived_profile(
    tables: SiliconTables, gpu: str, name: str, precision: str, parallel: int
) -> Profile | None:
    """None where the model does not fit, or nothing like it was measured."""
    model = MODELS[name]
    try:
        found: Derived = tables.derive(gpu, model, precision, parallel)
    except TablesError:
        return None
    tokens = kv_tokens(model, found.memory_bytes, precision, parallel)
    if tokens < 16_384:
        return None
    cost = found.cost
    return Profile(
        *(gpu, name, precision, parallel),
        *(cost.base_ms, cost.prefill_token_ms, cost.decode_sequence_ms, cost.kv_kilotoken_ms),
        kv_tokens=tokens,
        weights_gb=round(model.weights * PRECISION_BYTES[precision] / 1e9, 1),
        most_batch=256,
        most_context=4096,
        fit_error=round(found.error, 3),
        origin=found.origin,
        is_extrapolated=found.is_extrapolated,
    )


def slowed(profile: Profile, times: float) -> Profile:
    """A derived profile, by how much longer this engine takes than the tables say where both are known."""
    return replace(
        profile,
        base_ms=float(f"{times * profile.base_ms:.4g}"),
        prefill_token_ms=float(f"{times * profile.prefill_token_ms:.4g}"),
        decode_sequence_ms=float(f"{times * profile.decode_sequence_ms:.4g}"),
        kv_kilotoken_ms=float(f"{times * profile.kv_kilotoken_ms:.4g}"),
        origin=f"{profile.origin}, {times:.2f} times as long: as this engine took on an H200",
    )


def write(profiles: Iterable[Profile], path: Path) -> None:
    rows: list[dict[str, Any]] = [asdict(each) for each in profiles]
    path.write_text("[\n" + ",\n".join(f"  {json.dumps(each)}" for each in rows) + "\n]\n")
