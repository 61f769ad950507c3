from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.tenant import Limits, Price, check_model, check_name
from router.tenants.budget import CurrentMonth, day_of, month_end_s, month_of
from tests.router.tenants.values import DAY, MONTH, NOW_S, caller


@pytest.mark.parametrize("amount", [-1, 10**16])
def test_limits_and_prices_out_of_range_are_refused_by_name(amount: int) -> None:
    with pytest.raises(ValueError, match="tokens_per_min: expected 0 to"):
        Limits(tokens_per_min=amount)
    with pytest.raises(ValueError, match="completion: expected 0 to"):
        Price("smol", 0, 0, amount)


def test_a_share_is_more_than_zero_and_at_most_all() -> None:
    assert Limits(weight=1, slot_percent=100) != Limits(weight=1000, slot_percent=1)
    for wrong in (-1, 0, 1001):
        with pytest.raises(ValueError, match=r"weight: expected [01] to"):
            Limits(weight=wrong)
    for wrong in (-1, 0, 101):
        with pytest.raises(ValueError, match=r"slot_percent: expected [01] to"):
            Limits(slot_percent=wrong)


@pytest.mark.parametrize("name", ["", " a", "a\n", "a" * 101, "\0"])
def test_a_name_is_short_and_printable(name: str) -> None:
    with pytest.raises(ValueError, match="name: expected"):
        check_name("name", name)


@pytest.mark.parametrize("model", ["", "../x", "a b", "a" * 65, "smol\n"])
def test_a_model_name_is_one_that_triton_could_have(model: str) -> None:
    with pytest.raises(ValueError, match="not the name of a model"):
        check_model(model)


def test_days_and_months_are_those_of_utc() -> None:
    assert (day_of(NOW_S), month_of(NOW_S)) == (DAY, MONTH)
    assert month_of(month_end_s(NOW_S)) == "2026-12"
    assert month_of(month_end_s(NOW_S) - 0.001) == MONTH


@settings(deadline=None)
@given(st.lists(st.floats(0, 4e9), min_size=1))
def test_the_current_month_is_right_whichever_way_the_clock_jumps(times_s: list[float]) -> None:
    month = CurrentMonth()
    assert [month.at(at_s) for at_s in times_s] == [month_of(at_s) for at_s in times_s]


def test_a_key_shows_no_digest() -> None:
    assert "digest" not in repr(caller().key)
