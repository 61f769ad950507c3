"""Adding up what several routers have counted is the same as one router's counting it all."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.releases.arm_stats import ArmStats, Sample, merge_stats
from router.control.releases.evidence import Proportion, Spread
from router.control.releases.sums import (
    MOST_STRETCHES,
    Stretches,
    held_against,
    merge_proportions,
    merge_spreads,
    merge_stretches,
    pair_up,
    spread_of,
)
from tests.tiers import examples

numbers = st.floats(-50, 50)
moments = st.floats(0, 5000)
sizes = st.floats(0, 12)
sized = st.tuples(numbers, sizes)
timed = st.lists(st.tuples(moments, numbers, sizes), max_size=60)


def close(one: Spread, other: Spread) -> None:
    assert one.count == other.count
    assert one.mean == pytest.approx(other.mean, abs=1e-7)
    assert one.squares == pytest.approx(other.squares, abs=1e-5)
    assert one.size == pytest.approx(other.size, abs=1e-7)
    assert one.size_squares == pytest.approx(other.size_squares, abs=1e-5)
    assert one.products == pytest.approx(other.products, abs=1e-5)


def same(one: Stretches, other: Stretches) -> None:
    assert one.length_s == other.length_s
    assert [number for number, _ in one.parts] == [number for number, _ in other.parts]
    for (_, left), (_, right) in zip(one.parts, other.parts, strict=True):
        close(left, right)


def alike(one: ArmStats, other: ArmStats) -> None:
    assert (one.errors, one.refusals) == (other.errors, other.refusals)
    for name in ("first_token", "between_tokens", "length"):
        close(getattr(one, name), getattr(other, name))
        same(getattr(one.timed, name), getattr(other.timed, name))


def one_by_one(values: list[tuple[float, float]]) -> Spread:
    return reduce(merge_spreads, (spread_of([each]) for each in values), Spread())


def stretches_of(values: list[tuple[float, float, float]]) -> Stretches:
    """One by one too."""
    return reduce(lambda stretches, value: stretches.with_all([value]), values, Stretches())


@given(st.lists(st.booleans()), st.lists(st.booleans()))
def test_proportions_add_up(one: list[bool], other: list[bool]) -> None:
    parts = [reduce(Proportion.with_one, each, Proportion()) for each in (one, other)]
    assert merge_proportions(*parts) == reduce(Proportion.with_one, one + other, Proportion())


@given(st.lists(sized, max_size=60), st.lists(sized, max_size=60))
def test_spreads_add_up(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> None:
    alone = one_by_one(one + other)
    close(merge_spreads(one_by_one(one), one_by_one(other)), alone)
    close(spread_of(one + other), alone)


@given(timed, timed)
def test_stretches_add_up_in_any_order(
    one: list[tuple[float, float, float]], other: list[tuple[float, float, float]]
) -> None:
    merged = merge_stretches(stretches_of(one), stretches_of(other))
    same(merged, stretches_of(one + other))
    same(merged, merge_stretches(stretches_of(other), stretches_of(one)))
    same(merged, Stretches().with_all(one + other))


@given(timed)
def test_stretches_stay_few_and_lose_nothing(values: list[tuple[float, float, float]]) -> None:
    stretches = stretches_of(values)
    assert len(stretches.parts) <= MOST_STRETCHES
    assert sum(spread.count for _, spread in stretches.parts) == len(values)
    borders = [number for number, _ in stretches.parts]
    assert borders == sorted(set(borders))


samples = st.builds(
    Sample,
    st.booleans(),
    st.one_of(st.none(), st.floats(0.001, 10)),
    st.one_of(st.none(), st.floats(0.001, 10)),
    st.one_of(st.none(), st.integers(1, 1000)),
    st.one_of(st.none(), st.booleans()),
    moments,
)


@given(st.lists(samples, max_size=40), st.lists(samples, max_size=40))
@settings(max_examples=examples(25), deadline=None)
def test_the_stats_of_two_routers_add_up(one: list[Sample], other: list[Sample]) -> None:
    merged = merge_stats(ArmStats().with_all(one), ArmStats().with_all(other))
    alike(merged, ArmStats().with_all(one + other))


@given(st.lists(samples, max_size=40), st.integers(0, 40))
@settings(max_examples=examples(25), deadline=None)
def test_samples_add_up_the_same_in_any_portions(every: list[Sample], cut: int) -> None:
    alike(
        ArmStats().with_all(every[:cut]).with_all(every[cut:]), reduce(ArmStats.with_one, every, ArmStats())
    )


@given(timed, timed)
def test_arms_are_paired_only_where_both_have_samples(
    one: list[tuple[float, float, float]], other: list[tuple[float, float, float]]
) -> None:
    canary, stable = stretches_of(one), stretches_of(other)
    pairs = pair_up(canary, stable)
    assert all(pair.canary.count and pair.stable.count for pair in pairs)
    assert sum(pair.canary.count for pair in pairs) <= len(one)
    length_s = max(canary.length_s, stable.length_s)
    shared = {at_s // length_s for at_s, _, _ in one} & {at_s // length_s for at_s, _, _ in other}
    assert bool(pairs) or not shared


def test_arms_that_are_seldom_asked_are_paired_over_longer_times() -> None:
    """One request of each in ten seconds, never in the same one."""
    canary = stretches_of([(10.0 * each, 1.0, 0.0) for each in range(40)])
    stable = stretches_of([(10.0 * each + 5, 0.0, 0.0) for each in range(40)])
    pairs = pair_up(canary, stable)
    assert len(pairs) >= 8
    assert sum(pair.canary.count for pair in pairs) >= 36


def test_nothing_is_held_against_a_baseline_that_is_not_there() -> None:
    canary = stretches_of([(2.0 * each, 5.0 + each % 2, 0.0) for each in range(20)])
    assert held_against([canary], Spread()) is None
    found = held_against([canary], Spread(100, 5.0, 10.0))
    assert found is not None
    assert found.difference == pytest.approx(0.5)


@settings(deadline=None)
@given(st.integers(2, 50), st.integers(6, 60))
def test_no_number_of_requests_says_more_than_the_baseline_is_known_by(known: int, seconds: int) -> None:
    baseline = Spread(known, 5.0, 0.5 * (known - 1))
    canary = stretches_of([(each, 5.0 + each % 2, 0.0) for each in range(seconds)])
    found = held_against([canary], baseline)
    assert found is not None
    assert found.variance > 0.5 / known
