"""Latencies and lengths: what a canary takes of time and tokens, held against the stable release."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING

from router.control.releases.evidence import (
    estimate,
    log_evidence_of_shift,
    times_until,
    together,
)
from router.control.releases.gates import LOG_SHOWN, Finding, Gate
from router.control.releases.sums import held_against, merge_spreads, pair_up, pair_with_originals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.control.releases.arm_stats import ArmStats
    from router.control.releases.evidence import Estimate, Spread
    from router.control.releases.sums import Stretches

    Arms = Sequence[tuple[ArmStats, ArmStats]]

# With most of the traffic the canary is held against the stable release of the steps before, and may be so
# much slower than it may be beside it: a release that cannot bear all of the traffic is slower by far more.
_SLOWER_ALONE = 3.0
# A slow phase that a rollout happens to begin with should be over by then.
LEAST_TIME_S = 15
# Without anybody beside it a canary is not told from a busy minute of the whole machine any sooner.
_LEAST_TIME_ALONE_S = 60


@dataclass(frozen=True, slots=True)
class Bounds:
    """As logarithms: how far the canary may be from the stable release `beside` it, and from what that showed
    before, where it is `alone`. `loose` is how many times the first is enough for now; in the steps that the
    canary `is_alone` in, the second is what has to be shown."""

    beside: float
    alone: float
    limit: float
    loose: int
    is_alone: bool


@dataclass(frozen=True, slots=True)
class _Shift:
    """How far it is from the stable release at the same time, and without it from what that showed before."""

    beside: Estimate | None
    alone: Estimate | None
    counts: tuple[int, int]  # of the canary's requests, in all and alone

    @property
    def reversed(self) -> _Shift:
        return _Shift(_negative(self.beside), _negative(self.alone), self.counts)


def latency_bounds(ratio: float, limit: float, loose: int, *, is_alone: bool) -> Bounds:
    return Bounds(math.log(ratio), math.log(ratio * _SLOWER_ALONE), limit, loose, is_alone)


def length_bounds(ratio: float, limit: float, loose: int, *, is_alone: bool) -> Bounds:
    """Lengths do not go with the load; only what both releases showed before is known less well."""
    return Bounds(math.log(ratio), 2 * math.log(ratio), limit, loose, is_alone)


def check_latency(gate: Gate, steps: Arms, beside: Sequence[bool], bounds: Bounds, name: str) -> Finding:
    """Steps in which both can be compared count for and against it, and so do mirrored requests of any; of
    others the canary's requests are held against what the stable release took before."""
    canary, stable = _spreads(steps, name)
    if not canary.count and not stable.count:
        return Finding(gate, "none measured")
    shift = _shift(steps, beside, name, stable)
    figures = f"{_milliseconds(canary)} against {_milliseconds(stable)}"
    if shift.beside is not None:
        figures += f", {_times(shift.beside)} the stable release's at the same time"
    if shift.alone is not None and bounds.is_alone:
        figures += f"; with most of the traffic {_times(shift.alone)} the stable release's in earlier steps"
    timed: list[Stretches] = [getattr(arm.timed, name) for arm, _ in steps]
    mirrored: list[Stretches] = [getattr(arm.mirrored, name) for arm, _ in steps]
    against = 0.0
    if _lasting_s([*compress(timed, beside), *mirrored]) >= LEAST_TIME_S:
        against = _against(shift.beside, bounds.beside, bounds)
    if _lasting_s(compress(timed, map(not_, beside))) >= _LEAST_TIME_ALONE_S:
        against = max(against, _against(shift.alone, bounds.alone, bounds))
    return _finding(gate, figures, against, shift, bounds)


def check_lengths(steps: Arms, beside: Sequence[bool], bounds: Bounds) -> list[Finding]:
    gates = (Gate.LENGTH_UP, Gate.LENGTH_DOWN)
    canary, stable = _spreads(steps, "length")
    if not canary.count and not stable.count:
        return [Finding(gate, "none measured") for gate in gates]
    shift = _shift(steps, beside, "length", stable)
    figures = f"{_tokens(canary)} against {_tokens(stable)}"
    if shift.beside is not None:
        figures += f", {_times(shift.beside)} the stable release's"
    if shift.alone is not None and bounds.is_alone:
        figures += f"; with all of the traffic {_times(shift.alone)} the stable release's in earlier steps"
    found = []
    for gate, each in zip(gates, (shift, shift.reversed), strict=True):
        against = max(
            _against(each.beside, bounds.beside, bounds), _against(each.alone, bounds.alone, bounds)
        )
        found.append(_finding(gate, figures, against, each, bounds))
    return found


def _spreads(steps: Arms, name: str) -> tuple[Spread, Spread]:
    canary, stable = (
        reduce(merge_spreads, (getattr(arm, name) for arm in arms)) for arms in zip(*steps, strict=True)
    )
    return canary, stable


def _shift(steps: Arms, beside: Sequence[bool], name: str, stable: Spread) -> _Shift:
    """A prompt that both were asked at once compares them whatever else the canary has to do."""
    pairs, mirrored, alone, mirrored_alone, count = [], [], [], [], 0
    for (canary, usual), is_beside in zip(steps, beside, strict=True):
        copied = pair_with_originals(getattr(canary.mirrored, name))
        timed: Stretches = getattr(canary.timed, name)
        mirrored += copied
        if is_beside:
            pairs += pair_up(timed, getattr(usual.timed, name))
        else:
            alone.append(timed)
            mirrored_alone += copied
            count += getattr(canary, name).count
    total = sum(getattr(canary, name).count for canary, _ in steps)
    return _Shift(
        together(estimate(pairs), estimate(mirrored)),
        together(held_against(alone, stable), estimate(mirrored_alone)),
        (total, count),
    )


def _finding(gate: Gate, figures: str, against: float, shift: _Shift, bounds: Bounds) -> Finding:
    found, bound, count = shift.beside, bounds.beside * bounds.loose, shift.counts[0]
    if bounds.is_alone:
        found, bound, count = shift.alone, bounds.alone, shift.counts[1]
    within, more = _shown(found, bound, count)
    return Finding(gate, figures, against, within, more, f"up to {math.exp(bound):.3g} times")


def _shown(found: Estimate | None, allowed: float, count: int) -> tuple[float, int | None]:
    """How much of the evidence that a shift is below what is allowed is there, and how many requests lack."""
    if found is None:
        return 0.0, None
    within = max(-log_evidence_of_shift(found, allowed) / LOG_SHOWN, 0.0)
    if within >= 1:
        return within, 0
    times = times_until(found, allowed, LOG_SHOWN)
    return within, None if times is None else max(1, math.ceil(count * (times - 1)))


def _against(found: Estimate | None, allowed: float, bounds: Bounds) -> float:
    return 0.0 if found is None else max(log_evidence_of_shift(found, allowed) / bounds.limit, 0.0)


def _negative(found: Estimate | None) -> Estimate | None:
    return None if found is None else replace(found, difference=-found.difference)


def _lasting_s(every: Iterable[Stretches]) -> int:
    return sum(each.lasting_s for each in every)


def _milliseconds(logs: Spread) -> str:
    """A typical one: the geometric mean, which one slow request does not spoil."""
    return f"{math.exp(logs.mean) * 1e3:,.1f} ms of {logs.count:,}" if logs.count else "none measured"


def _tokens(logs: Spread) -> str:
    return f"{math.exp(logs.mean):,.0f} tokens of {logs.count:,}" if logs.count else "none measured"


def _times(found: Estimate) -> str:
    return f"{math.exp(found.difference):.2f} times"
