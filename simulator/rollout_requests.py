"""Many simulated requests of a rollout at once, and what a router would have counted of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from router.control.releases.arm_stats import ArmStats, Timed
from router.control.releases.evidence import Proportion, Spread
from router.control.releases.sums import Stretches

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Requests:
    """Of one release, in the order of time; what failed has taken nothing."""

    at_s: Numbers
    failed: Flags
    first_token_s: Numbers
    between_tokens_s: Numbers
    tokens: Numbers
    refused: Flags

    def only(self, chosen: Flags) -> Requests:
        return Requests(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @property
    def logs(self) -> tuple[tuple[Numbers, Numbers], ...]:
        """Of what each measure came to, beside the size of the work."""
        nothing = np.zeros(len(self.at_s))
        return (
            (np.log(self.first_token_s), nothing),
            (np.log(self.between_tokens_s), np.log1p(self.tokens)),
            (np.log(self.tokens), nothing),
        )


@dataclass
class Phases:
    """Three times as slow for about 10 s, then well for about 50."""

    chance: np.random.Generator
    most_s: float
    _turns_s: Numbers = field(init=False)

    def __post_init__(self) -> None:
        turns = 2 * int(self.most_s / 60 + 10 * math.sqrt(self.most_s / 60) + 20)
        self._turns_s = np.cumsum(self.chance.exponential([50, 10] * (turns // 2)))

    def factors(self, at_s: Numbers) -> Numbers:
        is_slow = np.searchsorted(self._turns_s, at_s, side="right") % 2 == 1
        return np.where(is_slow, 3.0, 1.0)


def each(function: Callable[[float], float], at_s: Numbers) -> Numbers:
    return np.fromiter(map(function, at_s.tolist()), float, len(at_s))


def counted(requests: Requests, length_s: int = 1) -> ArmStats:
    """As `ArmStats().with_all` of the same requests, with stretches of this length."""
    good = requests.only(~requests.failed)
    timed = Timed(*(_stretches(good.at_s, *logs, length_s) for logs in good.logs))
    return replace(_sums(requests), timed=timed)


def counted_pairs(copies: Requests, originals: Requests, length_s: int = 1) -> tuple[ArmStats, ArmStats]:
    """Of mirrored requests: those are compared with each other alone."""
    both = ~copies.failed & ~originals.failed
    pairs = zip(copies.only(both).logs, originals.only(both).logs, strict=True)
    nothing, at_s = np.zeros(int(both.sum())), copies.at_s[both]
    ratios = [_stretches(at_s, copy - original, nothing, length_s) for (copy, _), (original, _) in pairs]
    of_copies = replace(_sums(copies), mirrored=Timed(*ratios), copies=len(copies.at_s))
    return of_copies, _sums(originals)


def _sums(requests: Requests) -> ArmStats:
    """Whenever they came."""
    good = requests.only(~requests.failed)
    first_token, between_tokens, length = (_spread(*logs) for logs in good.logs)
    return ArmStats(
        Proportion(int(requests.failed.sum()), len(requests.failed)),
        Proportion(int(good.refused.sum()), len(good.refused)),
        first_token,
        between_tokens,
        length,
    )


def _spread(values: Numbers, sizes: Numbers) -> Spread:
    spreads = _spreads(np.zeros(len(values), dtype=np.int64), values, sizes, 1)
    return spreads[0] if len(values) else Spread()


def _stretches(at_s: Numbers, values: Numbers, sizes: Numbers, length_s: int) -> Stretches:
    if not len(at_s):
        return Stretches(length_s)
    numbers, places = np.unique(np.floor(at_s / length_s).astype(np.int64), return_inverse=True)
    spreads = _spreads(places, values, sizes, len(numbers))
    return Stretches(length_s, tuple(zip(numbers.tolist(), spreads, strict=True)))


def _spreads(places: NDArray[np.int64], values: Numbers, sizes: Numbers, groups: int) -> list[Spread]:
    def sums(weights: Numbers) -> Numbers:
        return np.bincount(places, weights, groups).astype(np.float64)

    counts = np.bincount(places, minlength=groups)
    some = np.maximum(counts, 1)
    means, usual = sums(values) / some, sums(sizes) / some
    apart, larger = values - means[places], sizes - usual[places]
    columns = (counts, means, sums(apart * apart), usual, sums(larger * larger), sums(apart * larger))
    return [Spread(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
