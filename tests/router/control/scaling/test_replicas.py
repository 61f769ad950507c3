"""How many replicas are wanted: early enough for their start, slowly fewer, and never less than one."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.admission.signals import Load
from router.control.scaling.demand import DAY_S, DemandForecast, Margin
from router.control.scaling.replicas import ReplicaScaling, ScalingSettings


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
    rare = [load(6500.0, replicas=11, risk=0.01 if second % 100 == 0 else 0.0) for second in range(1500)]
    wanted = [scaling.wanted(each, float(second)) for second, each in enumerate(rare)]
    assert wanted[-1] < wanted[0]


def test_the_margin_is_the_same_however_often_it_is_looked() -> None:
    found = []
    for every_s in (1.0, 5.0):
        margin, now_s = Margin(coverage=0.95), 0.0
        while now_s < 600.0:
            margin.observe(1200.0, now_s)
            margin.plan(1000.0, now_s + 60.0)
            now_s += every_s
        found.append(margin.value)
    assert found[0] == pytest.approx(found[1], rel=0.02)


def test_a_sudden_rise_is_expected_to_go_on() -> None:
    forecast = DemandForecast()
    for second in range(0, 600, 5):
        forecast.observe(1000.0, float(second))
    forecast.observe(1300.0, 600.0)
    assert forecast.foresee(1300.0, 90.0, 600.0) == pytest.approx(1600.0)


def test_a_backlog_is_worked_off_by_more_replicas() -> None:
    stuck = [load(700.0, replicas=4, drain_s=300.0) for _ in range(10)]
    assert told(ReplicaScaling(), stuck)[-1] >= 11  # one for what comes, and ten for 1,200 s in 120


def test_the_margin_rises_until_plans_are_enough_for_nearly_all_that_comes() -> None:
    """Bursts that nothing foretells."""
    margin, short = Margin(coverage=0.95), []
    for number in range(4000):
        demand = 1400.0 if number % 5 == 0 else 1000.0
        margin.observe(demand, 5.0 * number)
        planned = margin.value * 1000.0
        short.append(demand > planned)
        margin.plan(planned, 5.0 * number + 60.0)
    assert sum(short[2000:]) / 2000 < 0.12


def test_the_margin_falls_where_more_than_the_forecast_is_planned_anyway() -> None:
    margin = Margin(coverage=0.95)
    for number in range(2000):
        margin.observe(1000.0, 5.0 * number)
        margin.plan(margin.value * 1200.0, 5.0 * number + 60.0)
    assert margin.value < 0.9


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
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
