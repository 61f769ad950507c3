from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.releases.forecast import expected_s
from router.control.releases.plan import Plan, Tolerance

HALF = Plan(weights=(0.5, 1.0))


@pytest.mark.parametrize(
    ("per_s", "weights", "least_s", "most_s"),
    [
        (0.5, (0.5, 1.0), 900, 1600),
        (3.0, (0.2, 0.5, 1.0), 240, 380),
        (20.0, (0.05, 0.25, 1.0), 180, 240),
        (200.0, (0.01, 0.05, 0.25, 1.0), 220, 260),
    ],
)
def test_what_is_expected_lies_between_the_median_and_the_slowest_of_simulated_rollouts(
    per_s: float, weights: tuple[float, ...], least_s: float, most_s: float
) -> None:
    """`python -m benchmarks.rollouts` has the table."""
    assert least_s <= expected_s(Plan(weights=weights), per_s) <= most_s


def test_without_requests_a_rollout_takes_for_ever() -> None:
    assert expected_s(HALF, 0.0) == math.inf


def test_a_rollout_with_nothing_to_be_shown_beside_takes_its_least_time() -> None:
    assert expected_s(Plan(weights=(1.0,), min_requests=20, min_duration_s=60), 1.0) == 60


@settings(deadline=None)
@given(st.floats(0.05, 100), st.floats(1.1, 4), st.floats(0.1, 10))
def test_more_requests_copies_and_tolerance_make_a_rollout_no_longer(
    per_s: float, ratio: float, mirror_per_s: float
) -> None:
    usual = expected_s(HALF, per_s)
    more = 1.06  # as fine as it is told
    assert expected_s(HALF, 2 * per_s) <= usual * more
    assert expected_s(Plan(weights=(0.5, 1.0), mirror_per_s=mirror_per_s), per_s) <= usual * more
    lenient = Tolerance(latency_ratio=max(ratio, 1.25), error_margin=0.05)
    assert expected_s(Plan(weights=(0.5, 1.0), tolerance=lenient), per_s) <= usual * more


def test_a_rollout_with_recorded_prompts_ends_while_nobody_asks_and_sooner_than_without() -> None:
    replayed = Plan(weights=(0.5, 1.0), replay_per_s=1.0)
    assert expected_s(replayed, 0.0) < 1200
    assert expected_s(replayed, 0.5) < expected_s(Plan(weights=(0.5, 1.0)), 0.5)
