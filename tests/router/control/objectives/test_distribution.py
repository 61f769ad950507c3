from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.objectives.distribution import Distribution, added_up, bucket_of

TIMES = st.lists(st.floats(2e-5, 5e4), min_size=1, max_size=200)
FINE = 1.0203  # the ratio of two neighbouring bounds, and a little


def counted(times_s: list[float]) -> Distribution:
    return added_up({bucket_of(each): 1} for each in times_s)


def test_an_empty_distribution_claims_nothing() -> None:
    nothing = Distribution()
    assert nothing.samples == 0
    assert nothing.percentile(0.95) is None
    assert nothing.within(1.0) is None
    assert nothing.percentiles.p95_s is None


@settings(deadline=None)
@given(TIMES, st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_that_of_the_samples_themselves_but_for_two_percent(
    times_s: list[float], share: float
) -> None:
    exact_s = sorted(times_s)[ceil(share * len(times_s)) - 1]
    found_s = counted(times_s).percentile(share)
    assert found_s is not None
    assert exact_s / FINE <= found_s <= exact_s * FINE


@settings(deadline=None)
@given(TIMES, st.floats(2e-5, 5e4))
def test_the_share_within_a_limit_counts_what_is_clearly_below_and_not_what_is_clearly_above(
    times_s: list[float], limit_s: float
) -> None:
    found = counted(times_s).within(limit_s)
    assert found is not None
    total = len(times_s)
    assert sum(each * FINE < limit_s for each in times_s) / total <= found + 1e-9
    assert found - 1e-9 <= sum(each <= limit_s * FINE for each in times_s) / total


@settings(deadline=None)
@given(TIMES, TIMES)
def test_distributions_of_two_routers_add_up_to_one(here_s: list[float], there_s: list[float]) -> None:
    assert added_up([counted(here_s).counts, counted(there_s).counts]) == counted(here_s + there_s)


@pytest.mark.parametrize("time_s", [0.0, -1.0, 1e-9, 1e9, float("inf"), float("nan")])
def test_any_duration_even_an_impossible_one_has_a_bucket(time_s: float) -> None:
    assert 0 <= bucket_of(time_s) < 2000


@settings(deadline=None)
@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
def test_a_longer_time_is_never_in_an_earlier_bucket(one_s: float, other_s: float) -> None:
    assert (bucket_of(one_s) <= bucket_of(other_s)) or one_s > other_s
