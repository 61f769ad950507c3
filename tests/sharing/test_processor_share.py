from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.sharing.processor_share import ProcessorShare


def test_work_now_and_then_costs_no_rest() -> None:
    share = ProcessorShare(0.2, free_s=0.5)
    assert [share.rest_s("a", 0.4, now_s) for now_s in (0.0, 10.0, 20.0)] == [0.0, 0.0, 0.0]


def test_who_has_worked_more_than_is_free_rests_and_others_do_not() -> None:
    share = ProcessorShare(0.2, free_s=0.5)
    assert share.rest_s("greedy", 1.0, 1.0) == pytest.approx((1.0 * 0.8 - 0.5) / 0.2)
    assert share.rest_s("other", 0.5, 1.0) == 0.0


def test_the_longest_rest_is_bounded_and_pays_for_everything() -> None:
    share = ProcessorShare(0.2, free_s=0.5, most_rest_s=10.0)
    assert share.rest_s("a", 1000.0, 0.0) == pytest.approx(10.0)
    assert share.rest_s("a", 0.0, 10.0) == pytest.approx(0.0)


@pytest.mark.parametrize(("cores", "rests"), [(1, True), (2, True), (9, True), (10, False), (64, False)])
def test_a_machine_with_many_processors_lets_nobody_rest(cores: int, rests: bool) -> None:
    share = ProcessorShare.on(cores)
    assert (max(share.rest_s("a", 1.0, float(now_s)) for now_s in range(1, 20)) > 0) is rests


def test_tenants_without_debts_are_forgotten() -> None:
    share = ProcessorShare(0.2)
    for number in range(5000):
        share.rest_s(f"tenant-{number}", 0.01, float(number))
    assert len(share._debts) <= 1024


@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 5.0)), min_size=1, max_size=50),
    st.sampled_from([0.1, 0.2, 0.5, 1.0]),
)
def test_whoever_rests_as_told_works_for_its_share_at_most(
    pieces: list[tuple[float, float]], part: float
) -> None:
    """Each piece takes its time, then come the rest and a pause."""
    share = ProcessorShare(part, free_s=0.5, most_rest_s=1000.0)
    now_s = worked_s = 0.0
    for took_s, pause_s in pieces:
        now_s += took_s
        worked_s += took_s
        now_s += share.rest_s("a", took_s, now_s) + pause_s
        assert worked_s <= part * now_s + 0.5 + 1e-6
