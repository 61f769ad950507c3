"""Signals for scaling: sums and shares that fade."""

from __future__ import annotations

import pytest

from router.admission.judge import Faded, Risk


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
