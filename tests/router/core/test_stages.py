from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import results
from router.core.stages import STAGES, EngineTimes, Moments, stage_marks

seconds = st.floats(0, 1e6, allow_nan=False)


def stage_seconds(router: Moments, engine: EngineTimes | None) -> dict[str, float]:
    return {name: end_s - start_s for name, start_s, end_s in stage_marks(router, engine)}


@given(st.lists(seconds, min_size=9, max_size=9).map(sorted))
def test_stages_add_up_to_the_whole_request(moments: list[float]) -> None:
    arrived, admitted, dispatched, *engine, received, ended = moments
    router = Moments(arrived, admitted, dispatched, received, ended)
    for times in (EngineTimes(*engine), None):
        found = stage_seconds(router, times)
        assert set(found) <= set(STAGES)
        assert all(part >= 0 for part in found.values())
        assert sum(found.values()) == pytest.approx(ended - arrived, abs=1e-6)


@given(st.lists(seconds, min_size=4, max_size=4))
def test_another_machines_clock_never_makes_a_stage_negative(engine: list[float]) -> None:
    found = stage_seconds(Moments(10.0, 10.5, 11.0, 15.0, 16.0), EngineTimes(*engine))
    assert all(part >= 0 for part in found.values())
    assert sum(found.values()) == pytest.approx(6.0)


def test_each_stage_covers_the_moments_that_its_name_says() -> None:
    found = stage_seconds(Moments(0.0, 0.75, 1.0, 22.0, 29.0), EngineTimes(3.0, 6.0, 10.0, 15.0))
    assert found == {
        "admission": 0.75,
        "queue": 0.25,
        "preprocessing": 2.0,
        "engine_queue": 3.0,
        "prefill": 4.0,
        "decode": 5.0,
        "postprocessing": 7.0,
        "send": 7.0,
    }


def test_load_tests_and_top_know_every_stage() -> None:
    assert sorted(results.STAGES) == sorted(STAGES)
