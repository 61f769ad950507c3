from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.shapes.curves import NAMES, TRACE_BARS, ShapeOptions, curve, spawn_rate, users_at

SHAPES = st.builds(
    ShapeOptions,
    duration_s=st.floats(1, 86_400),
    low=st.floats(0, 1),
    spikes=st.integers(1, 5),
    days=st.integers(1, 5),
)
ARRIVALS = st.lists(st.floats(0, 1000), min_size=1, max_size=100).map(sorted)


@settings(deadline=None)
@given(st.sampled_from(NAMES), SHAPES, ARRIVALS, st.floats(0, 1))
def test_a_share_of_users_is_between_zero_and_one(
    name: str, options: ShapeOptions, arrivals: list[float], part: float
) -> None:
    assert 0 <= curve(name, options, arrivals)(part * options.duration_s) <= 1 + 1e-9


@settings(deadline=None)
@given(st.sampled_from(NAMES), SHAPES, ARRIVALS)
def test_all_users_are_active_at_some_moment(name: str, options: ShapeOptions, arrivals: list[float]) -> None:
    share = curve(name, options, arrivals)
    moments = [options.duration_s * (number + 0.5) / 1200 for number in range(1200)]
    assert max(share(at_s) for at_s in moments) == pytest.approx(1.0, abs=1e-3)


@settings(deadline=None)
@given(SHAPES, st.floats(0, 1), st.floats(0, 1))
def test_a_ramp_never_falls(options: ShapeOptions, one: float, other: float) -> None:
    share = curve("ramp", options)
    sooner, later = sorted((one * options.duration_s, other * options.duration_s))
    assert share(sooner) <= share(later)


def test_a_spike_is_in_the_middle_of_its_part() -> None:
    share = curve("spike", ShapeOptions(100, low=0.1, spikes=2))
    assert [share(at_s) for at_s in (0, 19, 21, 29, 31, 69, 71, 79, 81)] == [
        0.1,
        0.1,
        1,
        1,
        0.1,
        0.1,
        1,
        1,
        0.1,
    ]


def test_a_day_has_its_low_at_midnight_and_its_high_at_noon() -> None:
    share = curve("diurnal", ShapeOptions(240, low=0.3, days=2))
    assert [share(at_s) for at_s in (0, 60, 120, 180, 240)] == pytest.approx([0.3, 1, 0.3, 1, 0.3])


def test_a_burst_in_a_trace_is_a_burst_of_users_at_its_time() -> None:
    quiet = [float(second) for second in range(600)]
    burst = [300.0 + number / 100 for number in range(400)]
    share = curve("trace", ShapeOptions(60), sorted(quiet + burst))
    assert share(30.1) == 1.0  # 300 s of 599 fall into the bar at 30 s
    assert share(10) < 0.05
    assert share(59) < 0.05


@settings(deadline=None)
@given(ARRIVALS, st.floats(1, 1000))
def test_a_trace_counts_every_request_once(arrivals: list[float], duration_s: float) -> None:
    share = curve("trace", ShapeOptions(duration_s), arrivals)
    bars = [share(duration_s * (bar + 0.5) / TRACE_BARS) for bar in range(TRACE_BARS)]
    highest = max(1, round(len(arrivals) / sum(bars)))
    assert sum(bars) * highest == pytest.approx(len(arrivals))


def test_there_is_at_least_one_user_and_never_more_than_requested() -> None:
    assert [users_at(share, 10) for share in (0, 0.04, 0.5, 1, 1.2)] == [1, 1, 5, 10, 10]


@given(st.integers(0, 500), st.integers(1, 500))
def test_a_change_is_done_within_a_second(now: int, wanted: int) -> None:
    assert abs(wanted - now) / spawn_rate(now, wanted) <= 1


@pytest.mark.parametrize(
    ("values", "problem"),
    [({"duration_s": 0}, "above 0"), ({"low": 1.5}, "0 to 1"), ({"spikes": 0}, "at least 1")],
)
def test_invalid_shape_options_are_refused(values: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ShapeOptions(**{"duration_s": 60, **values})  # type: ignore[arg-type]  # wrong on purpose


def test_an_unknown_shape_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="steady, ramp, spike, diurnal, trace"):
        curve("wave", ShapeOptions(60))
    with pytest.raises(ValueError, match="needs a --trace"):
        curve("trace", ShapeOptions(60), ())
