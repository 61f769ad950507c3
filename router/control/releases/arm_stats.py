"""What is measured of one arm of a rollout in one step: values that add up, and their form in the store."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Any

from router.control.releases.evidence import Proportion, Spread
from router.control.releases.sums import (
    Stretches,
    merge_proportions,
    merge_spreads,
    merge_stretches,
    spread_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


PAST = -1  # the step of what a router had counted of a release before the rollout


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one arm; what was not measured is None. `at_s` is when it was asked for."""

    failed: bool
    first_token_s: float | None = None
    between_tokens_s: float | None = None
    tokens: int | None = None
    refused: bool | None = None
    at_s: float = 0.0
    prompt_tokens: int = 0  # that had to be computed
    late_first: bool | None = None  # whether it missed the model's objective, where there is one
    late_between: bool | None = None


@dataclass(frozen=True, slots=True)
class Timed:
    """Logarithms of what was measured, by when: what compares the arms within the same time."""

    first_token: Stretches = field(default_factory=Stretches)
    between_tokens: Stretches = field(default_factory=Stretches)
    length: Stretches = field(default_factory=Stretches)


@dataclass(frozen=True, slots=True)
class ArmStats:
    """All that is kept of an arm in a step, however many requests it has answered."""

    errors: Proportion = field(default_factory=Proportion)
    refusals: Proportion = field(default_factory=Proportion)
    first_token: Spread = field(default_factory=Spread)
    between_tokens: Spread = field(default_factory=Spread)
    length: Spread = field(default_factory=Spread)
    timed: Timed = field(default_factory=Timed)
    late_first: Proportion = field(default_factory=Proportion)
    late_between: Proportion = field(default_factory=Proportion)

    def with_one(self, sample: Sample) -> ArmStats:
        return self.with_all((sample,))

    def with_all(self, samples: Iterable[Sample]) -> ArmStats:
        every = list(samples)
        good = [each for each in every if not each.failed]
        first = _logs((each.at_s, each.first_token_s, each.prompt_tokens) for each in good)
        between = _logs(
            (each.at_s, each.between_tokens_s, each.prompt_tokens + (each.tokens or 0)) for each in good
        )
        length = _logs((each.at_s, each.tokens, 0) for each in good)
        seen = ArmStats(
            Proportion(len(every) - len(good), len(every)),
            _share(each.refused for each in good),
            _spread(first),
            _spread(between),
            _spread(length),
            Timed(*(Stretches().with_all(logs) for logs in (first, between, length))),
            _share(each.late_first for each in good),
            _share(each.late_between for each in good),
        )
        return merge_stats(self, seen)


def _spread(logs: Iterable[tuple[float, float, float]]) -> Spread:
    return spread_of((value, size) for _, value, size in logs)


def _share(asked: Iterable[bool | None]) -> Proportion:
    told = [each for each in asked if each is not None]
    return Proportion(sum(told), len(told))


def _logs(timed: Iterable[tuple[float, float | None, int]]) -> list[tuple[float, float, float]]:
    """When, how much, and of what size; what is not a number above 0 was not measured."""
    return [
        (at_s, math.log(value), math.log1p(size))
        for at_s, value, size in timed
        if value is not None and 0 < value < math.inf
    ]


def merge_stats(one: ArmStats, other: ArmStats) -> ArmStats:
    """What two routers have counted, as if one had counted it all."""
    return ArmStats(
        merge_proportions(one.errors, other.errors),
        merge_proportions(one.refusals, other.refusals),
        merge_spreads(one.first_token, other.first_token),
        merge_spreads(one.between_tokens, other.between_tokens),
        merge_spreads(one.length, other.length),
        Timed(
            merge_stretches(one.timed.first_token, other.timed.first_token),
            merge_stretches(one.timed.between_tokens, other.timed.between_tokens),
            merge_stretches(one.timed.length, other.timed.length),
        ),
        merge_proportions(one.late_first, other.late_first),
        merge_proportions(one.late_between, other.late_between),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """The canary and the stable release in each step so far, the current one last, and how often the stable
    one failed before."""

    steps: tuple[tuple[ArmStats, ArmStats], ...]
    past: Proportion = field(default_factory=Proportion)


_PROPORTIONS = ("errors", "refusals", "late_first", "late_between")
_SPREADS = ("first_token", "between_tokens", "length")


def stats_to_json(stats: ArmStats) -> str:
    """Short, as it is written every second."""
    named: dict[str, Any] = {name: asdict(getattr(stats, name)) for name in _PROPORTIONS + _SPREADS}
    named["timed"] = {
        name: [stretches.length_s, [[number, *_short(spread)] for number, spread in stretches.parts]]
        for name, stretches in ((name, getattr(stats.timed, name)) for name in _SPREADS)
    }
    return json.dumps(named, separators=(",", ":"))


def _short(spread: Spread) -> tuple[float, ...]:
    """Without the sizes where there are none."""
    told = tuple(round(each, 5) for each in astuple(spread))
    return told if any(told[3:]) else told[:3]


def stats_from_json(text: str) -> ArmStats:
    """Also of 0.7, which knew no sizes and no objectives."""
    value = json.loads(text)
    found: dict[str, Any] = {name: Proportion(**value[name]) for name in _PROPORTIONS if name in value}
    found |= {name: Spread(**value[name]) for name in _SPREADS}
    timed = Timed(**{name: _stretches(*each) for name, each in value.get("timed", {}).items()})
    return ArmStats(**found, timed=timed)


def _stretches(length_s: int, parts: list[list[Any]]) -> Stretches:
    return Stretches(length_s, tuple((number, Spread(*rest)) for number, *rest in parts))
