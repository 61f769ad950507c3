from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.report.windows import Windows, stage_means, stage_names
from loadtest.results import RequestResult, ServerSample
from tests.loadtest.report.made_runs import answered


@settings(deadline=None)
@given(st.floats(0.0, 1e6), st.integers(0, 1000))
def test_windows_are_round_few_and_cover_the_run(duration_s: float, values: int) -> None:
    windows = Windows.of(duration_s, values)
    assert 1 <= windows.count <= 48
    assert windows.count * windows.width_s >= duration_s * (1 - 1e-9)
    assert f"{windows.width_s:e}"[0] in "125"


MOMENTS = st.floats(0, 30)


@settings(deadline=None)
@given(st.lists(st.tuples(MOMENTS, st.floats(0.001, 5), st.floats(0, 0.5), st.integers(1, 40)), max_size=20))
def test_no_token_is_lost_between_windows(made: list[tuple[float, float, float, int]]) -> None:
    results = [answered(at_s, first_s, gap_s, tokens) for at_s, first_s, gap_s, tokens in made]
    windows = Windows.of(40.0, 400)
    seen = windows.tokens_per_s(results).sum() * windows.width_s
    assert seen == pytest.approx(sum(each.completion_tokens for each in results))


def test_percentiles_are_those_of_the_planned_moments() -> None:
    results = [answered(0.1, 1.0), answered(0.2, 3.0), answered(2.1, 7.0)]
    found = Windows(1.0, 3).percentiles(results, lambda each: each.first_token_s)
    assert found[0.5][0] == 1.0
    assert found[0.99][0] == 3.0
    assert np.isnan(found[0.5][1])
    assert found[0.5][2] == 7.0


def test_a_broken_answers_tokens_are_counted_where_they_came() -> None:
    broken = RequestResult("trace", 1.5, first_token_s=0.0, completion_tokens=4, error="x")
    assert list(Windows(1.0, 3).tokens_per_s([broken])) == [0, 4, 0]


def test_an_abandoned_answer_has_tokens_until_the_end() -> None:
    left = RequestResult("trace", 1.0, first_token_s=0.0, completion_tokens=4)
    assert list(Windows(1.0, 3).tokens_per_s([left])) == [0, 2, 2]


def test_stages_are_in_the_order_of_a_requests_life() -> None:
    told = {"send": 1.0, "triton": 1.0, "decode": 1.0, "admission": 1.0, "of another version": 1.0}
    samples = [ServerSample(0.0, 0.0, stage_seconds=told)]
    assert stage_names(samples) == ["admission", "decode", "triton", "send", "of another version"]


def sample(at_s: float, waiting_s: float, requests: float) -> ServerSample:
    return ServerSample(at_s, at_s, stage_seconds={"waiting": waiting_s}, stage_requests=requests)


def test_stages_count_the_requests_that_ended_in_a_window() -> None:
    seen = [sample(0.0, 5.0, 10), sample(0.9, 6.0, 12), sample(1.9, 6.0, 12), sample(2.9, 9.0, 22)]
    assert list(Windows(1.0, 3).stages(seen)["waiting"]) == [0.5, 0.0, pytest.approx(0.3)]
    assert stage_means(seen) == {"waiting": pytest.approx(4 / 12)}
    assert stage_means(seen[:1]) == {}
    gauge = Windows(1.0, 3).gauge(seen, lambda each: each.waiting)
    assert list(gauge) == [0.45, 1.9, 2.9]
    sparse = Windows(1.0, 5).gauge([seen[1], seen[3]], lambda each: each.waiting)
    assert list(sparse[:3]) == [0.9, pytest.approx(1.9), 2.9]
    assert np.isnan(sparse[3:]).all()
