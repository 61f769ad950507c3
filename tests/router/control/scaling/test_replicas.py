"""How many replicas are wanted: early enough for their start, slowly fewer, and never less than one."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.admission.signals import Load
from router.control.scaling.demand import DAY_S, DemandForecast
from router.control.scaling.replicas import ReplicaScaling, ScalingSettings
from tests.tiers import examples


def load(
    offered: float = 800.0,
    replicas: int = 2,
    risk: float = 0.0,
    drain_s: float = 0.1,
    objective_s: float = 1.0,
) -> Load:
    return Load(replicas, drain_s, risk, objective_s, offered)


def told(scaling: ReplicaScaling, loads: list[Load], every_s: float = 5.0, from_s: float = 0.0) -> list[int]:
    return [scaling.wanted(each, from_s + number * every_s) for number, each in enumerate(loads)]


def test_what_is_asked_for_is_divided_by_how_busy_a_replica_may_be() -> None:
    assert ReplicaScaling().wanted(load(4000.0), 0.0) == 7  # at 700 units a second each, and a tenth more


def test_spare_replicas_come_on_top() -> None:
    assert ReplicaScaling(ScalingSettings(spare=2)).wanted(load(4000.0), 0.0) == 9


def test_fewer_are_wanted_only_after_the_time_that_replicas_are_kept() -> None:
    scaling = ReplicaScaling(ScalingSettings(keep_s=600.0))
    assert scaling.wanted(load(4000.0), 0.0) == 7
    assert scaling.wanted(load(100.0), 300.0) == 7
    assert scaling.wanted(load(100.0), 600.0) == 7
    assert scaling.wanted(load(100.0), 601.0) == 1


def test_a_rising_demand_is_answered_before_it_is_there() -> None:
    rising = [load(1000.0 + 2 * second) for second in range(0, 900, 5)]
    ahead = told(ReplicaScaling(ScalingSettings(start_s=300.0)), rising)[-1]
    assert ahead >= math.ceil((1000 + 2 * (900 + 300)) / 700 * 0.95)


def test_what_came_at_this_time_of_the_day_before_is_expected_again() -> None:
    forecast = DemandForecast()
    for minute in range(24 * 60):
        forecast.observe(3000.0 if minute >= 600 else 1000.0, 60.0 * minute)
    for minute in range(24 * 60, 24 * 60 + 599):
        forecast.observe(1000.0, 60.0 * minute)
    assert forecast.foresee(1000.0, 300.0, DAY_S + 598 * 60.0) > 1800.0
    assert forecast.foresee(1000.0, 300.0, DAY_S + 300 * 60.0) == pytest.approx(1000.0, rel=0.01)


def test_risk_in_spite_of_free_replicas_lowers_how_busy_they_are_planned_to_be() -> None:
    scaling, replicas = ReplicaScaling(), ReplicaScaling().wanted(load(6500.0), 0.0)
    first = replicas
    for second in range(600):
        replicas = scaling.wanted(load(6500.0, replicas=replicas, risk=0.01), float(second))
    assert replicas > first


def test_a_little_risk_now_and_then_lets_replicas_be_busier() -> None:
    scaling = ReplicaScaling()
    rare = [load(6500.0, replicas=11, risk=0.01 if second % 300 == 0 else 0.0) for second in range(4000)]
    wanted = [scaling.wanted(each, float(second)) for second, each in enumerate(rare)]
    assert wanted[-1] < wanted[0]


def test_risk_of_a_burst_that_was_not_foreseen_leaves_how_busy_replicas_are_planned_to_be() -> None:
    burst = [load(9000.0, replicas=10, risk=0.05) for _ in range(10)]
    after = [load(6000.0, replicas=10, risk=0.05) for _ in range(40)]  # those refused are still remembered
    calm = [load(6000.0, replicas=10) for _ in range(1000)]
    told_of_burst, told_of_none = ReplicaScaling(), ReplicaScaling()
    told(told_of_burst, [*burst, *after, *calm], every_s=1.0)
    told(told_of_none, [*calm[:50], *calm], every_s=1.0)
    assert told_of_burst._use == pytest.approx(told_of_none._use, rel=0.01)


def hours_of(demands: Iterable[float], start_s: float = 90.0) -> float:
    """Replica hours for one demand every 5 s, where what is wanted is there after its start."""
    scaling, begun, hours = ReplicaScaling(ScalingSettings(start_s=start_s)), [1], 0.0
    for number, demand in enumerate(demands):
        there = begun[max(number - int(start_s / 5), 0)]
        begun.append(scaling.wanted(load(demand, replicas=there), 5.0 * number))
        hours += begun[-1] * 5.0 / 3600
    return hours


def test_bursts_that_are_over_before_a_replica_has_started_are_not_chased() -> None:
    """A minute in ten has twice as much: replicas for the height of the hour are enough, and fewer."""
    demands = [8000.0 if second % 600 < 60 else 4000.0 for second in range(0, 8 * 3600, 5)]
    height = 8 * math.ceil(1.1 * 8000.0 / 700.0)  # of a fleet that is always as large as a burst needs
    assert hours_of(demands) < 1.1 * height


def test_what_rises_for_hours_is_followed() -> None:
    """And falls for hours: the height of the last hour would be more than is needed for half of the time."""
    demands = [4000.0 + 3000.0 * math.sin(second / 7200.0) for second in range(0, 12 * 3600, 5)]
    always = 12 * math.ceil(1.1 * 7000.0 / 700.0)
    assert hours_of(demands) < 0.75 * always


def test_a_sudden_rise_is_expected_to_go_on() -> None:
    forecast = DemandForecast()
    for second in range(0, 600, 5):
        forecast.observe(1000.0, float(second))
    forecast.observe(1300.0, 600.0)
    assert forecast.foresee(1300.0, 90.0, 600.0) == pytest.approx(1600.0)


def test_a_backlog_is_worked_off_by_more_replicas() -> None:
    stuck = [load(700.0, replicas=4, drain_s=300.0) for _ in range(10)]
    assert told(ReplicaScaling(), stuck)[-1] >= 11  # one for what comes, and ten for 1,200 s in 120


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e6),
            st.integers(0, 500),
            st.floats(0, 1),
            st.floats(0, 1e4),
            st.floats(0.001, 3600),
            st.floats(0, 4000),
        ),
        max_size=20,
    )
)
def test_there_is_always_one_and_never_less_than_the_work_of_the_moment_takes(
    moments: list[tuple[float, int, float, float, float, float]],
) -> None:
    scaling, now_s = ReplicaScaling(), 0.0
    for offered, replicas, risk, drain_s, objective_s, passed_s in moments:
        now_s += passed_s
        wanted = scaling.wanted(Load(replicas, drain_s, risk, objective_s, offered), now_s)
        assert wanted >= max(1, math.floor(offered / 1000 / 0.9))
        assert wanted < 1e7


def test_a_queue_asks_for_more_replicas_only_once_it_has_been_long_for_a_while() -> None:
    scaling, begins_s = ReplicaScaling(), 10_000.0
    long = [load(drain_s=100.0)] * 4
    asked = told(scaling, long, every_s=5.0, from_s=begins_s)
    assert asked[:3] == [2, 2, 2]
    assert asked[3] > 2
    assert told(ReplicaScaling(), [*long[:3], load(), *long[:3]], every_s=5.0, from_s=begins_s) == [2] * 7
