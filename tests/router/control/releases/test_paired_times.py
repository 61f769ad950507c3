from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.control.releases.paired_times import (
    MOST_PAIRS,
    PairedTimes,
    Standing,
    chance_of_more,
    standing,
)

ALLOWED = 1.25
Noise = Callable[[Random], float]


def calm(random: Random) -> float:
    return random.gauss(0, 0.05)


def busy(random: Random) -> float:
    """A machine that is shared: every time is off by a fifth."""
    return random.gauss(0, 0.2)


def wild(random: Random) -> float:
    """One in five takes up to fifty times as long."""
    return random.gauss(0, 0.3) + (random.uniform(0, 4) if random.random() < 0.2 else 0)


def came_to(ratio: float, noise: Noise, random: Random) -> Standing:
    """Both measures, as they are looked at; what slows the machine down for a while slows both."""
    first, between = PairedTimes(), PairedTimes()
    for number in range(MOST_PAIRS):
        drift = math.sin(number / 3)
        times = [math.exp(drift + noise(random)) for _ in range(4)]
        first = first.plus(ratio * times[0], times[1])
        between = between.plus(ratio * times[2], times[3])
        found = [standing(each, ALLOWED) for each in (first, between)]
        if Standing.SLOWER in found:
            return Standing.SLOWER
        if found == [Standing.WITHIN] * 2:
            return Standing.WITHIN
    return Standing.OPEN


def refused(ratio: float, noise: Noise, runs: int) -> float:
    return sum(came_to(ratio, noise, Random(seed)) is Standing.SLOWER for seed in range(runs)) / runs


@pytest.mark.parametrize("noise", [calm, busy, wild])
def test_identical_releases_are_refused_in_less_than_one_of_two_hundred_rehearsals(noise: Noise) -> None:
    assert refused(1.0, noise, 200) < 0.005


@pytest.mark.parametrize("noise", [calm, busy, wild])
def test_a_release_as_slow_as_is_allowed_is_refused_as_seldom_whatever_the_noise(noise: Noise) -> None:
    assert refused(ALLOWED, noise, 250) < 0.008


@pytest.mark.parametrize("noise", [calm, busy])
def test_a_release_twice_as_slow_is_refused_in_more_than_99_of_100_rehearsals(noise: Noise) -> None:
    assert refused(2.0, noise, 120) > 0.99


def test_a_plain_difference_is_known_before_all_pairs_are_measured() -> None:
    times = PairedTimes(((0.06, 0.015),) * 10)
    assert standing(times, ALLOWED) is Standing.SLOWER
    assert standing(PairedTimes(times.pairs[:9]), ALLOWED, is_last=True) is Standing.OPEN
    assert standing(PairedTimes(((0.015, 0.015),) * 8), ALLOWED) is Standing.WITHIN
    assert standing(times, 4.2) is Standing.WITHIN


def test_the_typical_ratio_is_not_moved_by_a_few_odd_pairs() -> None:
    times = PairedTimes((*((0.03, 0.015),) * 9, (9.0, 0.015), (0.015, 9.0)))
    assert times.ratio == pytest.approx(2.0)
    assert (times.canary_s, times.stable_s) == (0.03, 0.015)


@given(st.lists(st.integers(-6, 6).filter(bool), min_size=1, max_size=8))
def test_the_chance_is_the_share_of_all_signs_that_speak_as_much_for_more(values: list[int]) -> None:
    sizes = sorted(map(abs, values))
    ranks = [2 * sizes.index(abs(each)) + sizes.count(abs(each)) + 1 for each in values]
    below = sum(rank for rank, value in zip(ranks, values, strict=True) if value < 0)
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=len(values))
    ]
    assert chance_of_more(values) == sum(each <= below for each in sums) / len(sums)
