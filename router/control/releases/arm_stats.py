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
    from collections.abc import Iterable, Sequence


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
    is_mirrored: bool = False  # one of a pair: a request of the stable release, or the canary's copy of it
    original: Sample | None = None  # of which it is a copy, that nobody saw
    is_replayed: bool = False  # one of a pair that nobody asked for: a recorded prompt


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
    # Of copies: how many times as long as their originals. Both had the other beside them, and requests that
    # are not mirrored had not: those are compared with each other alone.
    mirrored: Timed = field(default_factory=Timed)
    copies: int = 0  # of its requests, replays among them
    replays: int = 0

    @property
    def met(self) -> int:
        """How many requests of people it got."""
        return self.errors.total - self.copies

    def with_one(self, sample: Sample) -> ArmStats:
        return self.with_all((sample,))

    def with_all(self, samples: Iterable[Sample]) -> ArmStats:
        every = list(samples)
        good = [each for each in every if not each.failed]
        alone = [Stretches().with_all(logs) for logs in _logs_of(good, is_mirrored=False)]
        paired = (_spread(logs) for logs in _logs_of(good, is_mirrored=True))
        first_token, between_tokens, length = map(merge_spreads, (each.whole for each in alone), paired)
        seen = ArmStats(
            Proportion(len(every) - len(good), len(every)),
            _share(each.refused for each in good),
            first_token,
            between_tokens,
            length,
            Timed(*alone),
            _share(each.late_first for each in good),
            _share(each.late_between for each in good),
            _ratios([(each, each.original) for each in good if each.original is not None]),
            sum(each.original is not None or each.is_replayed for each in every),
            sum(each.is_replayed for each in every),
        )
        return merge_stats(self, seen)


Log = tuple[float, float, float]


def _logs_of(every: Iterable[Sample], *, is_mirrored: bool) -> tuple[list[Log], list[Log], list[Log]]:
    """Of times to the first token, times between tokens, and lengths."""
    samples = [each for each in every if each.is_mirrored is is_mirrored]
    return (
        _logs((each.at_s, each.first_token_s, each.prompt_tokens) for each in samples),
        _logs(
            (each.at_s, each.between_tokens_s, each.prompt_tokens + (each.tokens or 0)) for each in samples
        ),
        _logs((each.at_s, each.tokens, 0) for each in samples),
    )


def _ratios(pairs: Sequence[tuple[Sample, Sample]]) -> Timed:
    names = ("first_token_s", "between_tokens_s", "tokens")
    every = (
        [(copy.at_s, _ratio(getattr(copy, name), getattr(original, name)), 0) for copy, original in pairs]
        for name in names
    )
    return Timed(*(Stretches().with_all(_logs(each)) for each in every))


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _spread(logs: Iterable[Log]) -> Spread:
    return spread_of((value, size) for _, value, size in logs)


def _share(asked: Iterable[bool | None]) -> Proportion:
    told = [each for each in asked if each is not None]
    return Proportion(sum(told), len(told))


def _logs(timed: Iterable[tuple[float, float | None, int]]) -> list[Log]:
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
        _merge_timed(one.timed, other.timed),
        merge_proportions(one.late_first, other.late_first),
        merge_proportions(one.late_between, other.late_between),
        _merge_timed(one.mirrored, other.mirrored),
        one.copies + other.copies,
        one.replays + other.replays,
    )


def _merge_timed(one: Timed, other: Timed) -> Timed:
    return Timed(
        merge_stretches(one.first_token, other.first_token),
        merge_stretches(one.between_tokens, other.between_tokens),
        merge_stretches(one.length, other.length),
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
    named["timed"] = _timed_to_json(stats.timed)
    if stats.copies or stats.mirrored != Timed():
        named |= {"mirrored": _timed_to_json(stats.mirrored), "copies": stats.copies}
        named |= {"replays": stats.replays} if stats.replays else {}
    return json.dumps(named, separators=(",", ":"))


def _timed_to_json(timed: Timed) -> dict[str, Any]:
    every = ((name, getattr(timed, name)) for name in _SPREADS)
    return {
        name: [stretches.length_s, [[number, *_short(spread)] for number, spread in stretches.parts]]
        for name, stretches in every
    }


def _short(spread: Spread) -> tuple[float, ...]:
    """Without the sizes where there are none."""
    told = tuple(round(each, 5) for each in astuple(spread))
    return told if any(told[3:]) else told[:3]


def stats_from_json(text: str) -> ArmStats:
    """Also of 0.7, which knew no sizes, objectives and copies."""
    value = json.loads(text)
    found: dict[str, Any] = {name: Proportion(**value[name]) for name in _PROPORTIONS if name in value}
    found |= {name: Spread(**value[name]) for name in _SPREADS}
    timed, mirrored = (_timed_from_json(value.get(name, {})) for name in ("timed", "mirrored"))
    copies, replays = (value.get(name, 0) for name in ("copies", "replays"))
    return ArmStats(**found, timed=timed, mirrored=mirrored, copies=copies, replays=replays)


def _timed_from_json(value: dict[str, Any]) -> Timed:
    return Timed(**{name: _stretches(*each) for name, each in value.items()})


def _stretches(length_s: int, parts: list[list[Any]]) -> Stretches:
    return Stretches(length_s, tuple((number, Spread(*rest)) for number, *rest in parts))
