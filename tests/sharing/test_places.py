from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.sharing.places import GUARANTEES, Holder, Places
from python_backend.wire.tiers import Tier

FLOOD, CALM = (Tier.STANDARD, "flood"), (Tier.STANDARD, "calm")


def places_of(held: dict[Holder, int], weights: dict[Holder, float] | None = None) -> Places:
    places = Places()
    for holder, count in held.items():
        places.take(holder, (weights or {}).get(holder, 1.0), count)
    return places


def test_the_tenant_with_most_gives_a_place_to_one_with_less() -> None:
    assert places_of({FLOOD: 8}).giver(CALM, 8) == FLOOD
    assert places_of({FLOOD: 6, CALM: 2}).giver(CALM, 8) == FLOOD


def test_nobody_gives_a_place_to_who_has_its_part() -> None:
    assert places_of({FLOOD: 4, CALM: 4}).giver(CALM, 8) is None
    assert places_of({FLOOD: 5, CALM: 4}).giver(CALM, 9) is None
    assert places_of({FLOOD: 8}).giver(FLOOD, 8) is None


def test_the_last_place_of_a_tenant_is_not_taken() -> None:
    assert places_of({FLOOD: 1}).giver(CALM, 1) is None


def test_a_tenant_of_twice_the_weight_has_twice_the_places() -> None:
    heavy = places_of({FLOOD: 6, CALM: 2}, {FLOOD: 3.0})
    assert heavy.giver(CALM, 8) is None
    assert heavy.giver(FLOOD, 8, 3.0) is None


def test_a_worse_tier_below_its_guarantee_takes_from_a_better_one_above() -> None:
    flood = (Tier.INTERACTIVE, "flood")
    assert places_of({flood: 10}).giver(CALM, 10) == flood
    assert places_of({flood: 8, CALM: 2}).giver(CALM, 10) == flood
    assert places_of({flood: 7, CALM: 3}).giver(CALM, 10) is None


def test_a_better_tier_leaves_worse_ones_their_guarantees() -> None:
    flood = (Tier.INTERACTIVE, "flood")
    places = places_of({flood: 7, CALM: 3})
    assert not places.may_preempt(Tier.INTERACTIVE, Tier.STANDARD, 10)
    assert places_of({flood: 5, CALM: 5}).may_preempt(Tier.INTERACTIVE, Tier.STANDARD, 10)
    assert places_of({CALM: 2}).may_preempt(Tier.INTERACTIVE, Tier.STANDARD, 2)


def test_more_than_there_are_places_for_count_as_given_up_by_those_with_most() -> None:
    assert places_of({FLOOD: 40, CALM: 1}).giver(CALM, 5) == FLOOD
    others: dict[Holder, int] = {(Tier.STANDARD, f"t{number}"): 1 for number in range(4)}
    assert places_of({FLOOD: 40, **others}).giver(CALM, 5) is None


def test_the_lightest_tenant_is_one_with_less_than_its_part() -> None:
    assert places_of({FLOOD: 5, CALM: 1}).lightest() == CALM
    assert places_of({FLOOD: 2, CALM: 1}).lightest() is None
    assert places_of({FLOOD: 12}).lightest() is None


holders = st.tuples(st.sampled_from(Tier), st.sampled_from("abcd"))


@given(
    st.dictionaries(holders, st.integers(1, 12), min_size=1), holders, st.integers(1, 24), st.floats(0.5, 4)
)
@settings(deadline=None)
def test_a_place_that_was_given_is_not_taken_back(
    held: dict[Holder, int], taker: Holder, places: int, weight: float
) -> None:
    before = places_of(held, {taker: weight})
    while before.total > places:
        surplus = before.furthest()
        assert surplus is not None
        before.give_back(surplus)
    giver = before.giver(taker, places, weight)
    if giver is None:
        return
    assert giver[0] <= taker[0], "worse tiers are preempted"
    before.give_back(giver)
    before.take(taker, weight)
    before.check()
    assert before.giver(giver, places) != taker
    if giver[0] < taker[0]:
        assert not before.may_preempt(giver[0], taker[0], places)
        assert (
            sum(before.held((giver[0], tenant)) for tenant in "abcd") >= GUARANTEES[Tier(giver[0])] * places
        )
