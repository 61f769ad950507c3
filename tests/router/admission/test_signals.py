"""Signals for scaling: slow to be convinced, and slower to take away than to add."""

from __future__ import annotations

import pytest

from router.admission.judge import Faded, Risk
from router.admission.signals import Load, Scaling


def load(replicas: int = 2, drain_s: float = 0.1, risk: float = 0.0, offered: float = 800.0) -> Load:
    return Load(replicas, drain_s, risk, objective_s=1.0, offered=offered)


def test_risk_is_the_late_share_and_fades_without_requests() -> None:
    risk = Risk()
    for number in range(400):
        risk.add(number % 4 == 0, number / 10)
    assert risk.value(40.0) == pytest.approx(0.25, abs=0.02)
    assert risk.value(400.0) < 0.01


def test_a_faded_sum_over_its_window_is_a_rate() -> None:
    offered = Faded()
    for number in range(3000):
        offered.add(70.0, number / 10)
    assert offered.value(300.0) / offered.window_s == pytest.approx(700.0, rel=0.01)


@pytest.mark.parametrize("pressed", [load(risk=0.2, offered=4000), load(drain_s=0.6, offered=4000)])
def test_more_replicas_are_wanted_after_15_seconds_at_risk_or_with_a_long_queue(
    pressed: Load,
) -> None:
    scaling = Scaling()
    assert scaling.wanted(pressed, 0.0) == 2
    assert scaling.wanted(pressed, 14.0) == 2
    assert scaling.wanted(pressed, 15.0) == 6  # 4,000 units a second at 700 each


def test_a_moment_without_pressure_restarts_the_countdown() -> None:
    scaling = Scaling()
    scaling.wanted(load(risk=0.2, offered=4000), 0.0)
    scaling.wanted(load(offered=4000), 10.0)
    assert scaling.wanted(load(risk=0.2, offered=4000), 20.0) == 2


def test_one_replica_less_is_wanted_after_ten_idle_minutes_and_never_less_than_one() -> None:
    scaling = Scaling()
    assert scaling.wanted(load(), 0.0) == 2
    assert scaling.wanted(load(), 599.0) == 2
    assert scaling.wanted(load(), 600.0) == 1
    alone = Scaling()
    alone.wanted(load(replicas=1, offered=1.0), 0.0)
    assert alone.wanted(load(replicas=1, offered=1.0), 10_000.0) == 1
