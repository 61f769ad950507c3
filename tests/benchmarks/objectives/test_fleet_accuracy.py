"""What is sent to hold the simulators against."""

from __future__ import annotations

from benchmarks.objectives.fleet_accuracy import at_random, halves
from loadtest.traces import synthetic_trace


def test_the_half_that_is_tried_was_not_used_to_teach() -> None:
    trace = synthetic_trace(1, 60.0)
    taught, tried = halves(trace)
    assert not set(taught.requests) & set(tried.requests)
    assert len(taught.requests) + len(tried.requests) == len(trace.requests)
    assert {each.prompt_tokens for each in at_random(tried, 5.0, 60.0, 1)} <= {
        each.prompt_tokens for each in tried.requests
    }
