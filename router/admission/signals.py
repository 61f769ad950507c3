"""What a release reports for metrics and scaling."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.admission.judge import NoisyTenant

# More replicas: when so much of the best tier is at risk, or so much of its objective is queue, for so long.
_RISK, _DRAIN_PART, _PRESSED_S = 0.05, 0.5, 15.0
# One less: when without it the queue would stay this short and the rest half idle, for so long.
_EASY_DRAIN_PART, _EASY_USE, _EASY_S = 0.3, 0.5, 600.0
# A replica is not planned to be busier than that.
_PLANNED_USE = 0.7


@dataclass(frozen=True, slots=True)
class Signals:
    """`drain_s`: until all that runs and waits would be done; None while the cost of work is not known.

    `risk` is the part of the requests of about 30 seconds whose first token was predicted to be too late.
    `kv_budget_tokens` is None where the cache is no limit. `wanted_replicas` is how many the offered work
    needs; never less than one.
    """

    drain_s: float | None
    risk: Mapping[Tier, float]
    waiting: Mapping[Tier, int]
    running: int
    kv_reserved_tokens: int = 0
    kv_budget_tokens: int | None = None
    wanted_replicas: int = 1
    noisy: NoisyTenant | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What scaling goes by; `offered` is compute units asked for in a second, refused requests included."""

    replicas: int
    drain_s: float
    risk: float
    objective_s: float
    offered: float


class Scaling:
    """How many replicas are wanted; it changes with a delay, which is longer for fewer than for more."""

    def __init__(self) -> None:
        self._pressed_since_s: float | None = None
        self._easy_since_s: float | None = None

    def wanted(self, load: Load, now_s: float) -> int:
        here = max(load.replicas, 1)
        is_pressed = load.risk > _RISK or load.drain_s > _DRAIN_PART * load.objective_s
        self._pressed_since_s = _since(is_pressed, self._pressed_since_s, now_s)
        use = load.offered / (1000 * here)
        is_easy = here > 1 and use < _EASY_USE
        is_easy = is_easy and load.drain_s * here / (here - 1) < _EASY_DRAIN_PART * load.objective_s
        self._easy_since_s = _since(is_easy and not is_pressed, self._easy_since_s, now_s)
        if self._pressed_since_s is not None and now_s - self._pressed_since_s >= _PRESSED_S:
            return max(here, ceil(load.offered / (_PLANNED_USE * 1000)))
        if self._easy_since_s is not None and now_s - self._easy_since_s >= _EASY_S:
            return here - 1
        return here


def _since(is_so: bool, since_s: float | None, now_s: float) -> float | None:
    if not is_so:
        return None
    return now_s if since_s is None else since_s
