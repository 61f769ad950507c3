from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_backend.sharing.asks import Asks, light_bounds
from python_backend.sharing.places import GUARANTEES, Holder
from python_backend.wire.tiers import Tier

CALM, FLOOD = (Tier.STANDARD, "calm"), (Tier.STANDARD, "flood")
CALM_2, FLOOD_2 = (Tier.STANDARD, "calm-2"), (Tier.STANDARD, "flood-2")


def lights(rates: dict[Holder, float], weights: dict[Holder, float] | None = None) -> set[Holder]:
    each = {holder: (weights or {}).get(holder, 1.0) for holder in rates}
    bounds = light_bounds(rates, each)
    return {holder for holder, rate in rates.items() if 0.0 < bounds[holder[0]] >= rate / each[holder]}


def test_who_asks_for_less_than_its_part_is_light_beside_one_that_floods() -> None:
    assert lights({CALM: 0.2, FLOOD: 4.0}) == {CALM}
    assert lights({CALM: 0.2, CALM_2: 0.2, FLOOD: 4.0, FLOOD_2: 4.0}) == {CALM, CALM_2}


def test_who_asks_for_somewhat_more_than_its_part_is_light_as_long_as_there_is_enough() -> None:
    assert lights({CALM: 0.45, CALM_2: 0.45, FLOOD: 4.0, FLOOD_2: 4.0}) == {CALM, CALM_2}
    assert lights({CALM: 0.45, CALM_2: 0.7, FLOOD: 4.0, FLOOD_2: 4.0}) == {CALM}


def test_nobody_is_light_where_there_is_none_to_give_way() -> None:
    assert lights({CALM: 0.2, CALM_2: 0.3}) == set()
    assert lights({FLOOD: 5.0}) == set()


def test_weights_say_what_the_parts_are() -> None:
    assert lights({CALM: 0.6, FLOOD: 4.0, FLOOD_2: 4.0}) == {CALM}
    assert lights({CALM: 0.6, FLOOD: 4.0, FLOOD_2: 4.0}, {FLOOD: 4.0}) == set()


def test_beside_a_flood_of_a_better_tier_it_is_the_guarantee_that_is_shared() -> None:
    flood = (Tier.INTERACTIVE, "flood")
    assert lights({CALM: 0.25, flood: 4.0}) == {CALM}
    assert lights({CALM: 0.35, flood: 4.0}) == set()


def test_overlapping_answers_do_not_make_a_calm_tenant_heavy_and_the_first_burst_makes_a_flood() -> None:
    asks = Asks()
    flooding = [asks.ask(FLOOD, 1.0, 700_000, 1, number / 1000) for number in range(40)]
    assert not any(flooding)
    for second in range(1, 60):
        asks.ask(FLOOD, 1.0, 2_000_000, 1, second + 0.5)
        assert asks.ask(CALM, 1.0, 450_000, 1, second + 0.6)


def test_a_tenant_that_begins_to_flood_is_light_for_what_ten_seconds_are_enough_for() -> None:
    asks = Asks()
    for second in range(30):
        asks.ask(FLOOD, 1.0, 4_000_000, 1, float(second))
    assert sum(asks.ask(FLOOD_2, 1.0, 700_000, 1, 30.0) for _ in range(40)) * 0.7 <= 10


def test_books_are_bounded_however_many_tenants_ask() -> None:
    asks = Asks()
    for number in range(2000):
        asks.ask((Tier.STANDARD, f"tenant-{number}"), 1.0, 1000.0, 1, number / 100)
    assert len(asks) <= 256


holders = st.tuples(st.sampled_from(list(Tier)), st.sampled_from("abcdef"))
asking = st.dictionaries(holders, st.tuples(st.floats(0.002, 20.0), st.integers(1, 5)), min_size=1)


@given(asking)
def test_who_is_light_asks_for_no_more_than_the_others_and_all_together_for_what_there_is(
    found: dict[Holder, tuple[float, int]],
) -> None:
    rates = {holder: rate for holder, (rate, _) in found.items()}
    weights = {holder: float(weight) for holder, (_, weight) in found.items()}
    light = lights(rates, weights)
    assert len(light) < len(rates)
    for tier in Tier:
        others = sum(rate for holder, rate in rates.items() if holder[0] != tier)
        room = max(GUARANTEES[tier], 1.0 - others)
        mine = [holder for holder in light if holder[0] == tier]
        assert sum(rates[holder] for holder in mine) <= room + 1e-9
        rest = [rates[each] / weights[each] for each in rates if each[0] == tier and each not in light]
        assert all(rates[holder] / weights[holder] <= min(rest, default=20.0) for holder in mine)


@given(asking)
def test_below_its_part_a_tenant_is_light_wherever_others_ask_for_too_much(
    found: dict[Holder, tuple[float, int]],
) -> None:
    rates = {holder: rate for holder, (rate, _) in found.items()}
    weights = {holder: float(weight) for holder, (_, weight) in found.items()}
    light = lights(rates, weights)
    for tier in Tier:
        mine = [holder for holder in rates if holder[0] == tier]
        others = sum(rate for holder, rate in rates.items() if holder[0] != tier)
        room = max(GUARANTEES[tier], 1.0 - others)
        whole = sum(weights[holder] for holder in mine)
        if any(rates[each] > 2 * room * weights[each] / whole for each in mine):
            below = {each for each in mine if rates[each] <= room * weights[each] / whole}
            assert below <= light


def test_a_tenant_that_floods_is_known_as_such_when_the_cost_of_work_becomes_known() -> None:
    asks = Asks()
    for number in range(40):
        asks.ask(FLOOD, 1.0, 30_000, None, number / 1000)
    assert asks.ask(CALM, 1.0, 6_000, None, 1.0)
    asks.reprice(25.0)
    assert asks.ask(CALM, 1.0, 150_000, 1.0, 2.0)


def test_in_a_surge_of_all_tenants_no_more_is_light_than_the_engine_can_do() -> None:
    asks, many = Asks(), [(Tier.STANDARD, f"calm-{number}") for number in range(20)]
    for second in range(30):
        asks.ask(FLOOD, 1.0, 400_000, 1, float(second))
        for holder in many:
            asks.ask(holder, 1.0, 10_000, 1, second + 0.5)
    light_us = 0
    for tenth in range(20):  # each asks for ten times as much as before, all together for twice what there is
        asks.ask(FLOOD, 1.0, 400_000, 1, 31 + tenth / 10)
        light_us += sum(10_000 * asks.ask(holder, 1.0, 10_000, 1, 31 + tenth / 10) for holder in many)
    assert 0 < light_us <= 2_600_000
