"""What is measured of queue delays: a model at some rates under one objective, and each point of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.objectives.posting import Door
from router.core.manifest import entry_name

LADDER_MS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_SETTLE_WINDOWS = 12
SLEEPER, MINILM = "sleeper", "minilm"
_WORDS = (
    *("water", "house", "train", "green", "small", "music", "river", "paper", "light", "north", "story"),
    *("money", "world", "night", "south", "power", "table", "horse", "field", "voice", "glass", "stone"),
)


@dataclass(frozen=True)
class Case:
    """What is asked, how often, and how soon the answer has to be there."""

    model: str
    objective_s: float
    rates_per_s: tuple[float, ...]
    seconds: float
    window_s: float
    delays_ms: tuple[float, ...] = LADDER_MS

    @property
    def settle_s(self) -> float:
        """What the tuner gets: three windows to be sure, one to try it, and as many again to try the next."""
        return _SETTLE_WINDOWS * self.window_s

    @property
    def triton_model(self) -> str:
        return entry_name(self.model, 1)

    def door(self, url: str) -> Door:
        if self.model == SLEEPER:
            return Door(url, f"/v2/models/{self.model}/infer", _numbers)
        return Door(url, "/v1/embeddings", lambda number: {"model": self.model, "input": _text(number)})


def _numbers(number: int) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]}]}


def _text(number: int) -> str:
    """As long as what people type into a search box: a batch then costs little more than its first row."""
    return " ".join(_WORDS[(number * 7 + place * 13) % len(_WORDS)] for place in range(5))


@dataclass(frozen=True)
class Point:
    """One rate under one delay, or under the tuned one."""

    per_s: float
    delay_ms: float
    is_tuned: bool
    requests: int
    failed: int
    p50_ms: float
    p95_ms: float
    mean_batch: float
    idle_ms: float | None = None

    def keeps(self, objective_s: float) -> bool:
        return self.failed == 0 and self.p95_ms <= 1000 * objective_s
