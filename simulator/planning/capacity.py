"""What one replica can do: the highest rate at which every tier keeps its objectives, by the simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from python_backend.costs.step_cost import StepCost, weight_of
from simulator.engine import EngineShape
from simulator.planning.profiles import SLOTS, STEP_TOKENS
from simulator.report import figures_of
from simulator.scenario import Scenario
from simulator.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loadtest.traces import Trace
    from python_backend.wire.tiers import Tier
    from router.core.objective import Objective
    from simulator.planning.profiles import Profile
    from simulator.report import Figures

# As many requests as a replica could serve in so long at most; fewer would end before a queue shows.
_LASTING_S, _LEAST_REQUESTS = 30.0, 600
_ROUNDS = 5
# Of what arithmetic allows with endless batches: nobody plans for more.
_MOST_SHARE = 0.95
_OVERHEAD_S = 0.015


@dataclass(frozen=True)
class Capacity:
    """Of one replica, within objectives; `binds` is what is missed first beyond it, `at` how it is there."""

    per_s: float
    binds: str
    at: Figures | None
    bound_per_s: float

    @property
    def busy(self) -> float:
        """The part of what its arithmetic would allow with endless batches."""
        return self.per_s / self.bound_per_s if self.bound_per_s else 0.0


def bound_per_s(
    cost: StepCost, prompt_tokens: float, output_tokens: float, even_context: int | None = None
) -> float:
    """Requests a second of a batch that is always full: no objective lets a replica do more."""
    read_ms = cost.kv_kilotoken_ms * (prompt_tokens + output_tokens / 2) / 1000
    token_ms = cost.base_ms / SLOTS + cost.decode_sequence_ms + read_ms
    prompt_ms = cost.prefill_token_ms * weight_of(0, prompt_tokens, even_context)
    return 1000 / (prompt_ms + output_tokens * token_ms)


class CapacitySearch:
    """By halving; the same trace at different rates, cut or repeated to the same number of requests."""

    def __init__(self, trace: Trace, objectives: Mapping[Tier, Objective], goal: float) -> None:
        self._trace = trace
        self._objectives, self._goal = objectives, goal
        count = len(trace.requests)
        self._prompt_tokens = sum(each.prompt_tokens for each in trace.requests) / count
        self._output_tokens = sum(each.output_tokens for each in trace.requests) / count

    def of(self, profile: Profile, cost: StepCost | None = None) -> Capacity:
        cost = cost or profile.cost
        bound = bound_per_s(cost, self._prompt_tokens, self._output_tokens, profile.even_context)
        low, high, best, missed = 0.0, 2 * _MOST_SHARE, None, None
        for _ in range(_ROUNDS):
            share = (low + high) / 2
            figures = self._play(profile, cost, share * bound, bound)
            if _is_kept(figures, self._goal):
                low, best = share, figures
            else:
                high, missed = share, figures
            if low >= _MOST_SHARE:
                break
        binds = "compute" if missed is None else _binding(missed)
        return Capacity(low * bound, binds, best, bound)

    def at(self, profile: Profile, per_s: float) -> Figures:
        """One replica at this rate."""
        return self._play(profile, profile.cost, per_s, per_s)

    def _play(self, profile: Profile, cost: StepCost, per_s: float, bound: float) -> Figures:
        shape = EngineShape(
            cost, SLOTS, STEP_TOKENS, profile.kv_tokens, 64, even_context=profile.even_context
        )
        scenario = Scenario(shape, objectives=self._objectives, overhead_s=_OVERHEAD_S)
        trace = _sized(self._trace, max(int(bound * _LASTING_S), _LEAST_REQUESTS))
        rate = len(trace.requests) / max(trace.duration_s, 1e-9)
        trace = trace.clamp(int(0.9 * profile.kv_tokens)).faster(per_s / rate)
        return figures_of(simulate(trace, scenario), scenario)


def _sized(trace: Trace, requests: int) -> Trace:
    if len(trace.requests) >= requests:
        return trace.up_to(requests)
    return trace.lasting(1.1 * trace.duration_s * requests / len(trace.requests)).up_to(requests)


def _is_kept(figures: Figures, goal: float) -> bool:
    return all(tier.good_share >= goal for tier in figures.tiers if tier.offered >= 10)


def _binding(figures: Figures) -> str:
    """What the worst tier misses, and what is full then."""
    worst = min((tier for tier in figures.tiers if tier.offered >= 10), key=lambda each: each.good_share)
    late = worst.refused + worst.too_late
    what = "first token" if late >= worst.offered - worst.good - late else "time between tokens"
    if figures.preemptions:
        return f"{what}, {worst.tier}: KV cache"
    return f"{what}, {worst.tier}: {'compute' if figures.busy_share > 0.9 else 'batch'}"


def with_prompts(trace: Trace, times: float) -> Trace:
    """Prompts so many times as long."""
    longer = tuple(
        replace(each, prompt_tokens=max(int(each.prompt_tokens * times), 1)) for each in trace.requests
    )
    return replace(trace, requests=longer)
