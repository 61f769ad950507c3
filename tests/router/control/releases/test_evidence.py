from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.releases.evidence import (
    Pair,
    Proportion,
    Spread,
    log_evidence_of_more,
    log_evidence_of_shift,
    mean_difference,
)


@given(st.integers(0, 500), st.integers(0, 500), st.floats(0, 1))
def test_the_more_hits_the_more_evidence(hits: int, misses: int, allowed: float) -> None:
    fewer, more = Proportion(hits, hits + misses + 1), Proportion(hits + 1, hits + misses + 1)
    assert log_evidence_of_more(fewer, allowed) <= log_evidence_of_more(more, allowed) + 1e-9
    assert math.isfinite(log_evidence_of_more(more, allowed))


@given(st.floats(0.001, 0.3), st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
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


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=50))
def test_a_running_spread_has_the_mean_and_variance_of_its_samples(values: list[float]) -> None:
    spread = Spread()
    for value in values:
        spread = spread.with_one(value)
    mean = sum(values) / len(values)
    assert spread.mean == pytest.approx(mean, abs=1e-6)
    assert spread.variance == pytest.approx(
        sum((value - mean) ** 2 for value in values) / (len(values) - 1), abs=1e-6
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
    evidence = log_evidence_of_shift(given_pairs, allowed)
    assert math.isfinite(evidence)
    if mean_difference(given_pairs) <= allowed:
        assert evidence == 0.0


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=40), st.floats(-3, 3))
def test_a_load_that_both_arms_share_is_no_evidence(load: list[float], shift: float) -> None:
    """Whatever the load does from one stretch to the next, only the difference within each counts."""
    calm = [Pair(Spread(5, shift, 1.0), Spread(5, 0.0, 1.0)) for _ in load]
    rough = [Pair(Spread(5, each + shift, 1.0), Spread(5, each, 1.0)) for each in load]
    assert log_evidence_of_shift(rough, 0.2) == pytest.approx(log_evidence_of_shift(calm, 0.2), abs=1e-6)


def test_four_stretches_are_never_enough_and_a_few_more_are() -> None:
    slow = Pair(Spread(10, 10.0, 0.1), Spread(10, 0.0, 0.1))
    assert log_evidence_of_shift([slow] * 4, 0.2) < math.log(600)
    assert log_evidence_of_shift([slow] * 6, 0.2) > math.log(2400)


def test_one_slow_phase_counts_less_than_the_same_slowness_spread_out() -> None:
    """Eight slow stretches of 24: in a row they may be one mishap, here and there they are a habit."""
    slow = Pair(Spread(10, 1.5, 1.0), Spread(10, 0.0, 1.0))
    well = Pair(Spread(10, 0.2, 1.0), Spread(10, 0.0, 1.0))
    in_a_row = [well] * 8 + [slow] * 8 + [well] * 8
    here_and_there = [well, slow, well] * 8
    assert log_evidence_of_shift(in_a_row, 0.2) < log_evidence_of_shift(here_and_there, 0.2)
