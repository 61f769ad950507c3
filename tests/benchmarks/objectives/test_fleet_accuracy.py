"""A forecast beside what came."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.objectives.fleet_accuracy import FIRST, Compared, Seen, at_random, halves, of_times
from loadtest.traces import synthetic_trace
from simulator.fleet.fleet import FleetPlayed
from simulator.fleet.state import BIN_FACTOR, BINS, FIRST_BIN_S, TIERS


def test_the_half_that_is_tried_was_not_used_to_teach() -> None:
    trace = synthetic_trace(1, 60.0)
    taught, tried = halves(trace)
    assert not set(taught.requests) & set(tried.requests)
    assert len(taught.requests) + len(tried.requests) == len(trace.requests)
    assert {each.prompt_tokens for each in at_random(tried, 5.0, 60.0, 1)} <= {
        each.prompt_tokens for each in tried.requests
    }


def test_a_percentile_is_of_all_tiers_and_lies_within_its_bin() -> None:
    times = np.zeros((2, TIERS, BINS), np.int64)
    times[FIRST, 0, 100] = times[FIRST, 2, 100] = 50
    played = FleetPlayed(np.zeros(1), np.zeros(1), times, (), (), 0.0)
    assert of_times(played, FIRST, 0.5) == pytest.approx(FIRST_BIN_S * BIN_FACTOR**99.5)


def test_errors_are_relative_to_what_was_measured() -> None:
    seen, said = Seen(2.0, 0.1, 0.2, 0.01, 0.02), Seen(1.8, 0.1, 0.23, 0.01, 0.02)
    errors = Compared(0.4, 2.0, seen, said, 0.0).errors()
    assert errors["good_per_s"] == pytest.approx(0.1)
    assert errors["first_p95_s"] == pytest.approx(0.15)
    assert errors["first_p50_s"] == 0
