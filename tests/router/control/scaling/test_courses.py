"""Courses: a margin that is enough, replicas that are kept for a while, the highest of late."""

from __future__ import annotations

import pytest

from router.control.scaling.courses import Course, Highest, Margin


def test_the_highest_is_of_what_was_told_within_its_time() -> None:
    highest: Highest[int] = Highest(60.0)
    told = [highest.after(value, now_s) for now_s, value in ((0.0, 5), (30.0, 3), (60.0, 4), (61.0, 1))]
    assert told == [5, 5, 5, 4]


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


def test_a_course_keeps_what_it_wanted_for_a_while() -> None:
    course = Course(coverage=0.99, start_s=60.0, keep_s=300.0)
    assert course.replicas(1000.0, 1000.0, 0.0, 100.0, 0.0) == 11  # a tenth more, until plans are checked
    assert course.replicas(100.0, 100.0, 0.0, 100.0, 300.0) == 11
    assert course.replicas(100.0, 100.0, 0.0, 100.0, 301.0) == 2


def test_a_course_has_never_fewer_than_the_least() -> None:
    assert Course(coverage=0.99, start_s=60.0, keep_s=300.0).replicas(10.0, 10.0, 3.5, 100.0, 0.0) == 4
