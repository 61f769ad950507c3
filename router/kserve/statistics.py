"""How often each release was asked, and where the time went, in the fields of Triton's own statistics."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from router.core.stages import TOGETHER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from router.core.record import Record

_NS_PER_S = 1_000_000_000
# Of a request's time, what Triton calls it -> the stages that it is made of; together they are the whole.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "queue": ("admission", "queue", "engine_queue"),
    "compute_input": ("preprocessing",),
    "compute_infer": ("prefill", "decode", TOGETHER),
    "compute_output": ("postprocessing", "send"),
}
# The same of each step inside a language model; what nobody tells apart is the engine's.
_PARTS_OF_STEPS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "preprocessing": {"compute_infer": ("preprocessing",)},
    "tensorrt_llm": {"queue": ("engine_queue",), "compute_infer": ("prefill", "decode", TOGETHER)},
    "postprocessing": {"compute_infer": ("postprocessing",)},
}
_CACHE = {"count": 0, "ns": 0}  # no answer is taken from one


@dataclass(slots=True)
class Tally:
    """Since the router's start; a cancelled request counts as failed. `last_ms` is on the wall clock."""

    finished: int = 0
    stages_ns: Counter[str] = field(default_factory=Counter)  # of those that finished
    failed: int = 0
    failed_ns: int = 0
    last_ms: int = 0


class Statistics:
    """By tenant, model and release."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str, str], Tally] = {}

    def add(self, record: Record, finished: bool, now_s: float) -> None:
        """One request that has ended."""
        tally = self._tallies.setdefault((record.tenant, record.model, record.model_version), Tally())
        if finished:
            tally.finished += 1
            for stage, start_s, end_s in record.marks(now_s):
                tally.stages_ns[stage] += int((end_s - start_s) * _NS_PER_S)
        else:
            tally.failed += 1
            tally.failed_ns += int((now_s - record.arrived_s) * _NS_PER_S)
        tally.last_ms = int(time.time() * 1000)

    def of(self, tenant: str, model: str, version: str) -> Tally:
        return self._tallies.get((tenant, model, version), Tally())


class Row(NamedTuple):
    """What is told under one name and version: of a release, or of one step inside it."""

    name: str
    version: str
    tally: Tally
    step: str = ""

    def describe(self) -> dict[str, Any]:
        tally = self.tally
        parts = _PARTS_OF_STEPS[self.step] if self.step else _PARTS
        times_ns = {part: sum(tally.stages_ns[stage] for stage in parts.get(part, ())) for part in _PARTS}
        failed = (0, 0) if self.step else (tally.failed, tally.failed_ns)
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": tally.last_ms,
            "inference_count": tally.finished,
            "execution_count": tally.finished,
            "inference_stats": {
                "success": {"count": tally.finished, "ns": sum(times_ns.values())},
                "fail": {"count": failed[0], "ns": failed[1]},
                **{part: {"count": tally.finished, "ns": ns} for part, ns in times_ns.items()},
                "cache_hit": _CACHE,
                "cache_miss": _CACHE,
            },
        }


def describe(rows: Iterable[Row]) -> dict[str, Any]:
    return {"model_stats": [row.describe() for row in rows]}
