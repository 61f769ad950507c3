"""How long requests wait for others, from the objective, the arrivals and what batches take."""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.costs.batch_cost import BatchCost
from router.control.tuning.queue_delay import (
    GUARD_MS,
    LADDER_MS,
    LEAST_LOAD,
    Arrivals,
    Room,
    choose_queue_delay,
    snap_down,
)

COST = BatchCost(4.0, 0.5)  # that of the facts that were measured
ROOM = Room(100.0, 0.0, 64)

arrivals = st.builds(
    Arrivals, st.floats(0, 5000, allow_subnormal=False), st.floats(1, 16, allow_subnormal=False)
)
costs = st.builds(BatchCost, st.floats(0, 50), st.floats(0, 10), st.floats(1, 3))
rooms = st.builds(Room, st.floats(1, 5000), st.floats(0, 50), st.integers(2, 128), st.integers(1, 4))


@pytest.mark.parametrize(
    ("per_s", "objective_ms", "delay_ms"),
    [(0, 100, 0), (1, 100, 0), (20, 1000, 0), (200, 100, 50), (200, 50, 20), (200, 25, 10), (200, 8, 0)],
)
def test_the_delay_follows_the_arrivals_and_the_objective(
    per_s: float, objective_ms: float, delay_ms: float
) -> None:
    assert (
        choose_queue_delay(Arrivals(per_s), replace(ROOM, objective_ms=objective_ms), COST).delay_ms
        == delay_ms
    )


def test_no_delay_is_chosen_where_batching_saves_nothing() -> None:
    found = choose_queue_delay(Arrivals(200), ROOM, BatchCost(0.0, 4.0))
    assert found.delay_ms == 0
    assert "save 0%" in found.sentence


def test_a_saturated_model_fills_batches_without_a_delay() -> None:
    assert choose_queue_delay(Arrivals(5000), ROOM, COST).delay_ms == 0


def test_requests_of_many_rows_need_no_others_to_fill_a_batch() -> None:
    assert choose_queue_delay(Arrivals(50, 64), ROOM, COST).delay_ms == 0


def test_a_chosen_delay_is_explained() -> None:
    found = choose_queue_delay(Arrivals(200), replace(ROOM, objective_ms=50), COST)
    assert found.batch == 8
    assert found.queue_size == 256
    assert "200 requests/s" in found.sentence
    assert "in 20 ms" in found.sentence


@settings(deadline=None)
@given(arrivals, rooms, costs)
def test_a_delay_is_on_the_ladder_and_leaves_time_for_the_batch(
    arrivals: Arrivals, room: Room, cost: BatchCost
) -> None:
    found = choose_queue_delay(arrivals, room, cost)
    assert found.delay_ms in LADDER_MS
    assert found.sentence
    assert found.queue_size >= room.max_batch
    if found.delay_ms:
        taken_ms = found.delay_ms + cost.slow_batch_ms(found.batch) + room.elsewhere_ms + GUARD_MS
        assert taken_ms <= room.objective_ms + 1e-6
        assert 1 < found.batch <= room.max_batch
        assert found.delay_ms * arrivals.requests_per_s >= 1000  # somebody is expected to join


def test_a_step_that_is_too_short_for_anybody_gives_way_to_the_next() -> None:
    """35 ms lie between two requests, and 20 ms of the ladder would gather nobody."""
    found = choose_queue_delay(Arrivals(28), Room(200.0, 0.0, 64), BatchCost(11.0, 18.6, 1.2))
    assert found.delay_ms == 50
    assert found.batch == 2
    assert "about 2 rows gather in 50 ms" in found.sentence


@pytest.mark.parametrize(
    ("per_s", "objective_ms", "said"),
    [
        (15, 1000, "one every 66.7 ms on average; the longest delay is 50 ms"),
        (28, 150, "batching needs a delay of 50 ms, but the allowed 150 ms leave 28 ms to wait"),
        (28, 165, "batching needs a delay of 50 ms, but the allowed 165 ms leave 43 ms to wait"),
        (28, 55, "28 requests/s leave no time to wait within the allowed 55 ms"),
    ],
)
def test_where_nobody_would_come_in_time_both_times_are_told(
    per_s: float, objective_ms: float, said: str
) -> None:
    found = choose_queue_delay(Arrivals(per_s), Room(objective_ms, 0.0, 64), BatchCost(20.0, 20.0))
    assert found.delay_ms == 0
    assert said in found.sentence


@settings(deadline=None)
@given(st.floats(20, 2000), rooms, st.builds(BatchCost, st.floats(5, 50), st.floats(0, 1), st.floats(1, 3)))
def test_without_a_delay_no_step_that_somebody_would_come_in_was_possible(
    per_s: float, room: Room, cost: BatchCost
) -> None:
    """Of a model that is busy, and whose batches are cheap."""
    found = choose_queue_delay(Arrivals(per_s), room, cost)
    if found.delay_ms or per_s * cost.batch_ms(1) / 1000 / room.instances < LEAST_LOAD:
        return
    rows_per_s = room.instances * 2000 / cost.batch_ms(2)
    if per_s >= rows_per_s:
        return  # more comes than batches of two can take: they fill without a delay
    is_busy = per_s / rows_per_s > 0.5
    left_ms = room.objective_ms - room.elsewhere_ms - GUARD_MS - (1 + is_busy) * cost.slow_batch_ms(2)
    assert not any(1000 / per_s <= step <= left_ms - 1e-6 for step in LADDER_MS)


@settings(deadline=None)
@given(arrivals, rooms, costs, st.floats(0, 1000))
def test_a_looser_objective_never_shortens_the_delay(
    arrivals: Arrivals, room: Room, cost: BatchCost, more_ms: float
) -> None:
    looser = replace(room, objective_ms=room.objective_ms + more_ms)
    tight_ms = choose_queue_delay(arrivals, room, cost).delay_ms
    assert choose_queue_delay(arrivals, looser, cost).delay_ms >= tight_ms


@settings(deadline=None)
@given(st.floats(0, 1e4))
def test_snapping_never_makes_a_delay_longer(delay_ms: float) -> None:
    assert snap_down(delay_ms) <= delay_ms


def test_what_a_longer_delay_would_bring_and_cost_is_told() -> None:
    """28 requests a second, of which half a one comes within 20 ms."""
    room = Room(150.0, 0.0, 64)
    found = choose_queue_delay(Arrivals(28), room, BatchCost(20.0, 20.0))
    assert found.delay_ms == 0
    assert found.longer is not None
    assert found.longer.told(150.0) == (
        "with 20 ms 0.56 more requests would join on average: batches of 1.56 rows would save 18% of the "
        "compute time, and answers would take up to 124 ms, within the allowed 150 ms"
    )


def test_where_the_longest_delay_is_in_force_no_longer_one_is_told() -> None:
    assert choose_queue_delay(Arrivals(200), replace(ROOM, objective_ms=200), COST).longer is None
    assert choose_queue_delay(Arrivals(0), ROOM, COST).longer is None


@settings(deadline=None)
@given(arrivals, rooms, costs)
def test_what_is_told_of_a_longer_delay_is_what_the_numbers_say(
    arrivals: Arrivals, room: Room, cost: BatchCost
) -> None:
    found = choose_queue_delay(arrivals, room, cost)
    longer = found.longer
    if longer is None:
        assert found.delay_ms == LADDER_MS[-1] or arrivals.requests_per_s == 0
        return
    told = longer.told(room.objective_ms)
    numbers = [float(each.replace(",", "")) for each in re.findall(r"\d[\d,.]*(?:e[+-]?\d+)?", told)]
    delay_ms, joining, rows, saved, slow_ms, objective_ms = numbers
    assert delay_ms == longer.delay_ms > found.delay_ms
    assert delay_ms in LADDER_MS
    assert joining == pytest.approx(delay_ms * arrivals.requests_per_s / 1000, rel=0.01)
    asked = arrivals.rows_per_request
    assert rows == pytest.approx(max(asked, min(room.max_batch, asked * (1 + joining))), rel=0.02)
    if cost.batch_ms(asked) > 0:
        alone_ms, together_ms = (cost.batch_ms(each) / each for each in (asked, longer.rows))
        assert saved / 100 == pytest.approx(1 - together_ms / alone_ms, abs=0.006)
    assert slow_ms >= 0.99 * (delay_ms + cost.slow_batch_ms(longer.rows) + room.elsewhere_ms)
    assert objective_ms == pytest.approx(room.objective_ms, rel=0.01)
    assert ("within the allowed" in told) == (longer.slow_ms <= room.objective_ms)


@settings(deadline=None)
@given(arrivals, rooms, costs)
def test_what_is_told_of_the_chosen_delay_is_true_at_every_rate(
    arrivals: Arrivals, room: Room, cost: BatchCost
) -> None:
    found = choose_queue_delay(arrivals, room, cost)
    load = arrivals.requests_per_s * cost.batch_ms(ceil(arrivals.rows_per_request)) / 1000 / room.instances
    assert ("batching is not needed" in found.sentence) == (arrivals.requests_per_s > 0 and load < LEAST_LOAD)
    if "on average" in found.sentence:
        (gap_ms,) = re.findall(r"one every ([\d,.e+]+) ms on average", found.sentence)
        assert float(gap_ms.replace(",", "")) == pytest.approx(1000 / arrivals.requests_per_s, rel=0.01)
    if "longest delay" in found.sentence:
        assert LADDER_MS[-1] * arrivals.requests_per_s < 1000
    if gathered := re.findall(r"about (\d+) rows gather in ([\d.]+) ms", found.sentence):
        rows, delay_ms = map(float, gathered[0])
        expected = arrivals.rows_per_request * (1 + delay_ms * arrivals.requests_per_s / 1000)
        assert delay_ms == found.delay_ms
        assert rows == pytest.approx(min(found.batch, expected), abs=0.51)
    assert "nobody" not in found.sentence
