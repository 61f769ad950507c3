"""Figures that add up: over stretches of time, and over the routers that counted them."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING

from router.control.releases.evidence import Pair, Proportion, Spread, estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.control.releases.evidence import Estimate

# Enough stretches to see how much they scatter, and no more than fit into a row that is written each second.
MOST_STRETCHES = 64
# Pairs are made of longer stretches while more than this share of the canary's requests would have no partner
# and there are stretches enough to see how much they scatter.
_MOST_ALONE = 0.1
_ENOUGH_PAIRS = 8


def merge_proportions(one: Proportion, other: Proportion) -> Proportion:
    return Proportion(one.hits + other.hits, one.total + other.total)


def merge_spreads(one: Spread, other: Spread) -> Spread:
    """The same, up to rounding, as if one had counted all."""
    if not one.count or not other.count:
        return other if not one.count else one
    count = one.count + other.count
    share = other.count / count
    apart, larger = other.mean - one.mean, other.size - one.size
    between = one.count * share
    return Spread(
        count,
        one.mean + apart * share,
        one.squares + other.squares + apart * apart * between,
        one.size + larger * share,
        one.size_squares + other.size_squares + larger * larger * between,
        one.products + other.products + apart * larger * between,
    )


def spread_of(values: Iterable[tuple[float, float]]) -> Spread:
    """Of what was measured, each beside its size."""
    every = list(values)
    if not every:
        return Spread()
    count = len(every)
    measured, sizes = zip(*every, strict=True)
    mean, size = math.fsum(measured) / count, math.fsum(sizes) / count
    apart, larger = [each - mean for each in measured], [each - size for each in sizes]
    squares, size_squares, products = (
        math.fsum(map(mul, one, other)) for one, other in ((apart, apart), (larger, larger), (apart, larger))
    )
    return Spread(count, mean, squares, size, size_squares, products)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Values by when they came: (number of the stretch since 1970, its values), in the order of time.

    When there are too many stretches each becomes twice as long, so the longer one looks, the longer a slow
    phase may last before it is taken for more than one. Their borders are the same on every machine.
    """

    length_s: int = 1
    parts: tuple[tuple[int, Spread], ...] = ()

    def with_all(self, timed: Iterable[tuple[float, float, float]]) -> Stretches:
        """With values and their sizes, after the moment when each came."""
        found: dict[int, list[tuple[float, float]]] = {}
        for at_s, value, size in timed:
            found.setdefault(math.floor(at_s / self.length_s), []).append((value, size))
        parts = tuple((number, spread_of(found[number])) for number in sorted(found))
        return merge_stretches(self, Stretches(self.length_s, parts))

    def _with(self, number: int, spread: Spread) -> Stretches:
        parts = self.parts
        place = len(parts)
        if parts and parts[-1][0] >= number:
            place = bisect_left(parts, number, key=_number)
        if place < len(parts) and parts[place][0] == number:
            merged = (number, merge_spreads(parts[place][1], spread))
            return Stretches(self.length_s, (*parts[:place], merged, *parts[place + 1 :]))
        longer = Stretches(self.length_s, (*parts[:place], (number, spread), *parts[place:]))
        while len(longer.parts) > MOST_STRETCHES:
            longer = longer.coarser(longer.length_s * 2)
        return longer

    @property
    def whole(self) -> Spread:
        """As if all had come at once."""
        return reduce(merge_spreads, (spread for _, spread in self.parts), Spread())

    @property
    def lasting_s(self) -> int:
        """From the beginning of the first to the end of the last."""
        return (self.parts[-1][0] - self.parts[0][0] + 1) * self.length_s if self.parts else 0

    def coarser(self, length_s: int) -> Stretches:
        """In stretches of this length, a multiple of its own by a power of two."""
        if length_s == self.length_s:
            return self
        factor = length_s // self.length_s
        parts: list[tuple[int, Spread]] = []
        for number, spread in self.parts:
            if parts and parts[-1][0] == number // factor:
                parts[-1] = (parts[-1][0], merge_spreads(parts[-1][1], spread))
            else:
                parts.append((number // factor, spread))
        return Stretches(length_s, tuple(parts))


def _number(part: tuple[int, Spread]) -> int:
    return part[0]


def merge_stretches(one: Stretches, other: Stretches) -> Stretches:
    length_s = max(one.length_s, other.length_s)
    merged = one.coarser(length_s)
    for number, spread in other.coarser(length_s).parts:
        factor = merged.length_s // length_s  # may have grown on the way
        merged = merged._with(number // factor, spread)
    return merged


def pair_up(canary: Stretches, stable: Stretches) -> list[Pair]:
    """Of the stretches in which both arms have values."""
    length_s = max(canary.length_s, stable.length_s)
    counted = sum(spread.count for _, spread in canary.parts)
    while True:
        canary, stable = canary.coarser(length_s), stable.coarser(length_s)
        there = dict(stable.parts)
        pairs = [Pair(spread, there[number]) for number, spread in canary.parts if number in there]
        paired = sum(pair.canary.count for pair in pairs)
        if paired >= (1 - _MOST_ALONE) * counted or len(canary.parts) <= _ENOUGH_PAIRS:
            return pairs
        length_s *= 2


def held_against(canary: Sequence[Stretches], before: Spread) -> Estimate | None:
    """With all that the stable arm has ever shown, where it has nothing of the same time.

    How well that is known limits what any number of requests can say.
    """
    if not before.count:
        return None
    found = estimate([Pair(spread, before) for each in canary for _, spread in each.parts])
    return found and replace(found, variance=found.variance + before.variance / before.count)


def pair_with_originals(ratios: Stretches) -> list[Pair]:
    """Of stretches of ratios, of each copy to its original: those do not scatter by themselves."""
    return [Pair(spread, Spread(spread.count)) for _, spread in ratios.parts]
