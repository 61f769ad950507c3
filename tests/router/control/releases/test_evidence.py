from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.releases.evidence import (
    Estimate,
    Pair,
    Proportion,
    Spread,
    estimate,
    log_evidence_of_fewer,
    log_evidence_of_more,
    log_evidence_of_shift,
    times_until,
    together,
)
from router.control.releases.sums import spread_of
from tests.tiers import examples


def evidence_of(pairs: list[Pair], allowed: float) -> float:
    found = estimate(pairs)
    return 0.0 if found is None else log_evidence_of_shift(found, allowed)


@given(st.integers(0, 500), st.integers(0, 500), st.floats(0, 1))
def test_the_more_hits_the_more_evidence(hits: int, misses: int, allowed: float) -> None:
    fewer, more = Proportion(hits, hits + misses + 1), Proportion(hits + 1, hits + misses + 1)
    assert log_evidence_of_more(fewer, allowed) <= log_evidence_of_more(more, allowed) + 1e-9
    assert math.isfinite(log_evidence_of_more(more, allowed))


@given(st.floats(0.001, 0.3), st.integers(0, 2**32))
@settings(max_examples=examples(15), deadline=None)
def test_an_allowed_rate_seldom_looks_bad_however_often_it_is_checked(rate: float, seed: int) -> None:
    """An e-value: the chance to ever reach a million is one in a million."""
    chance, counted = random.Random(seed), Proportion()
    for _ in range(300):
        counted = counted.with_one(chance.random() < rate)
        assert log_evidence_of_more(counted, rate) < math.log(1e6)


@given(st.integers(0, 100), st.integers(0, 1000))
def test_a_cautious_rate_is_never_below_the_observed_one(hits: int, misses: int) -> None:
    counted = Proportion(hits, hits + misses)
    assert counted.cautious_rate >= counted.rate


@given(st.floats(0.001, 0.3), st.integers(0, 2**32))
@settings(max_examples=examples(15), deadline=None)
def test_a_rate_that_is_too_high_seldom_looks_good_however_often_it_is_checked(
    rate: float, seed: int
) -> None:
    chance, counted = random.Random(seed), Proportion()
    for _ in range(300):
        counted = counted.with_one(chance.random() < rate)
        assert log_evidence_of_fewer(counted, rate) < math.log(1e6)


@given(st.integers(0, 500), st.integers(1, 500), st.floats(0.001, 0.999))
def test_the_fewer_hits_the_more_is_shown_for_it(hits: int, misses: int, allowed: float) -> None:
    fewer, more = Proportion(hits, hits + misses + 1), Proportion(hits + 1, hits + misses + 1)
    assert log_evidence_of_fewer(more, allowed) <= log_evidence_of_fewer(fewer, allowed) + 1e-9


@given(st.lists(st.tuples(st.floats(-20, 20), st.floats(0, 12)), min_size=2, max_size=50))
def test_a_spread_has_the_mean_and_variance_of_its_samples(values: list[tuple[float, float]]) -> None:
    spread = spread_of(values)
    mean = sum(value for value, _ in values) / len(values)
    assert spread.mean == pytest.approx(mean, abs=1e-6)
    assert spread.variance == pytest.approx(
        sum((value - mean) ** 2 for value, _ in values) / (len(values) - 1), abs=1e-6
    )


means = st.floats(-5, 5)
counts = st.integers(1, 1000)
pairs = st.builds(
    lambda canary, stable, left, right, squares: Pair(
        Spread(left, canary, squares * (left - 1)), Spread(right, stable, squares * (right - 1))
    ),
    means,
    means,
    counts,
    counts,
    st.floats(0, 4),
)


@given(st.lists(pairs, max_size=40), st.floats(0, 1))
def test_evidence_of_a_shift_is_a_number_and_there_is_none_without_one(
    given_pairs: list[Pair], allowed: float
) -> None:
    found = estimate(given_pairs)
    if found is None:
        return
    evidence = log_evidence_of_shift(found, allowed)
    assert math.isfinite(evidence)
    assert evidence <= 0 or found.difference > allowed
    assert evidence >= 0 or found.difference < allowed


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=40), st.floats(-3, 3))
def test_a_load_that_both_arms_share_is_no_evidence(load: list[float], shift: float) -> None:
    """Whatever the load does from one stretch to the next, only the difference within each counts."""
    calm = [Pair(Spread(5, shift, 1.0), Spread(5, 0.0, 1.0)) for _ in load]
    rough = [Pair(Spread(5, each + shift, 1.0), Spread(5, each, 1.0)) for each in load]
    assert evidence_of(rough, 0.2) == pytest.approx(evidence_of(calm, 0.2), abs=1e-6)


def test_four_stretches_are_never_enough_and_a_few_more_are() -> None:
    slow = Pair(Spread(10, 10.0, 0.1), Spread(10, 0.0, 0.1))
    assert evidence_of([slow] * 4, 0.2) < math.log(600)
    assert evidence_of([slow] * 9, 0.2) > math.log(2400)


def test_one_slow_phase_counts_less_than_the_same_slowness_spread_out() -> None:
    """Eight slow stretches of 24: in a row they may be one mishap, here and there they are a habit."""
    slow = Pair(Spread(10, 1.5, 1.0), Spread(10, 0.0, 1.0))
    well = Pair(Spread(10, 0.2, 1.0), Spread(10, 0.0, 1.0))
    in_a_row = [well] * 8 + [slow] * 8 + [well] * 8
    here_and_there = [well, slow, well] * 8
    assert evidence_of(in_a_row, 0.2) < evidence_of(here_and_there, 0.2)


def test_longer_prompts_of_one_arm_are_allowed_for() -> None:
    """Twice the tokens take twice the time in either arm, and the canary got the longer half of them."""
    chance = random.Random(1)

    def arm(longer: float) -> Spread:
        sizes = [chance.uniform(4, 6) + longer for _ in range(20)]
        return spread_of((size + chance.gauss(0, 0.1), size) for size in sizes)

    found = estimate([Pair(arm(0.7), arm(0.0)) for _ in range(20)])
    assert found is not None
    assert abs(found.difference) < 0.05


@given(st.floats(-1, 0.15), st.floats(0.01, 1), st.floats(3, 60))
def test_what_is_said_to_be_enough_is_enough(difference: float, deviation: float, count: float) -> None:
    found = Estimate(difference, deviation**2, count)
    times = times_until(found, 0.2, math.log(100))
    if times is not None:
        assert log_evidence_of_shift(found.after(times), 0.2) <= -math.log(100)


estimates = st.builds(Estimate, st.floats(-2, 2), st.floats(1e-4, 1), st.floats(2, 60))


@given(estimates, estimates)
def test_two_estimates_together_lie_between_both_and_are_surer_than_either(
    one: Estimate, other: Estimate
) -> None:
    found = together(one, other)
    assert found is not None
    least, most = sorted((one.difference, other.difference))
    assert least - 1e-9 <= found.difference <= most + 1e-9
    assert found.variance < min(one.variance, other.variance)
    assert min(one.count, other.count) - 1e-6 <= found.count <= one.count + other.count + 1e-6
    assert together(one, None) == together(None, one) == one
    assert together(None, None) is None


def test_a_stretch_with_more_requests_counts_for_more_up_to_a_bound() -> None:
    def part_of(count: int, beside: int) -> float:
        """Which part of the estimate comes from the first of two stretches of so many requests."""
        one, other = Pair(Spread(count, 1.0, 1.0), Spread(count)), Pair(Spread(beside), Spread(beside))
        found = estimate([one, other])
        assert found is not None
        return found.difference

    assert part_of(8, 8) == pytest.approx(0.5)
    assert part_of(8, 2) > 0.7
    assert part_of(2000, 200) < 0.53
