"""What is measured of one arm of a rollout in one step: values that add up, and their form in the store."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
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


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one arm; what was not measured is None. `at_s` is when it was asked for."""

    failed: bool
    first_token_s: float | None = None
    between_tokens_s: float | None = None
    tokens: int | None = None
    refused: bool | None = None
    at_s: float = 0.0


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

    def with_one(self, sample: Sample) -> ArmStats:
        return self.with_all((sample,))

    def with_all(self, samples: Iterable[Sample]) -> ArmStats:
        every = list(samples)
        good = [each for each in every if not each.failed]
        refused = [each.refused for each in good if each.refused is not None]
        first = _logs((each.at_s, each.first_token_s) for each in good)
        between = _logs((each.at_s, each.between_tokens_s) for each in good)
        length = _logs((each.at_s, each.tokens) for each in good)
        return ArmStats(
            merge_proportions(self.errors, Proportion(len(every) - len(good), len(every))),
            merge_proportions(self.refusals, Proportion(sum(refused), len(refused))),
            merge_spreads(self.first_token, spread_of(value for _, value in first)),
            merge_spreads(self.between_tokens, spread_of(value for _, value in between)),
            merge_spreads(self.length, spread_of(value for _, value in length)),
            Timed(
                self.timed.first_token.with_all(first),
                self.timed.between_tokens.with_all(between),
                self.timed.length.with_all(length),
            ),
        )


def _logs(timed: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    """What is not a number above 0 was not measured."""
    return [(at_s, math.log(value)) for at_s, value in timed if value is not None and 0 < value < math.inf]


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
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """The canary and the stable release in each step so far, the current one last."""

    steps: tuple[tuple[ArmStats, ArmStats], ...]


def stats_to_json(stats: ArmStats) -> str:
    """Short, as it is written every second."""
    named = {
        name: asdict(getattr(stats, name))
        for name in ("errors", "refusals", "first_token", "between_tokens", "length")
    }
    timed = stats.timed
    named["timed"] = {
        name: [stretches.length_s, [[number, *_short(spread)] for number, spread in stretches.parts]]
        for name, stretches in (
            ("first_token", timed.first_token),
            ("between_tokens", timed.between_tokens),
            ("length", timed.length),
        )
    }
    return json.dumps(named, separators=(",", ":"))


def _short(spread: Spread) -> tuple[int, float, float]:
    return spread.count, round(spread.mean, 6), round(spread.squares, 6)


def stats_from_json(text: str) -> ArmStats:
    value = json.loads(text)
    return ArmStats(
        Proportion(**value["errors"]),
        Proportion(**value["refusals"]),
        Spread(**value["first_token"]),
        Spread(**value["between_tokens"]),
        Spread(**value["length"]),
        Timed(**{name: _stretches(*each) for name, each in value.get("timed", {}).items()}),
    )


def _stretches(length_s: int, parts: list[list[Any]]) -> Stretches:
    return Stretches(length_s, tuple((number, Spread(*rest)) for number, *rest in parts))
