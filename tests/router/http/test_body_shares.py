from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.http.body_shares import BodyShares

HOLDERS = st.sampled_from("abcde")


def fill(slots: BodyShares, holder: str) -> int:
    """How many it gets when it asks without end."""
    taken = 0
    while slots.take(holder):
        taken += 1
    return taken


def test_one_holder_alone_gets_half() -> None:
    assert fill(BodyShares(64), "a") == 32


def test_the_next_holder_finds_slots_however_many_one_keeps() -> None:
    slots = BodyShares(64)
    fill(slots, "greedy")
    assert [fill(slots, name) for name in "abc"] == [16, 8, 4]


def test_holders_that_take_turns_get_equal_parts() -> None:
    slots = BodyShares(64)
    got = Counter(name for _ in range(64) for name in "abc" if slots.take(name))
    assert got == {"a": 16, "b": 16, "c": 16}


@given(st.integers(1, 40), st.lists(st.tuples(HOLDERS, st.booleans()), max_size=200))
def test_slots_are_never_more_than_there_are_and_all_come_back(
    total: int, asked: list[tuple[str, bool]]
) -> None:
    slots, held = BodyShares(total), Counter[str]()
    for holder, takes in asked:
        if takes:
            free = total - held.total()
            assert slots.take(holder) == (held[holder] < free)
            held[holder] += held[holder] < free
        elif held[holder]:
            slots.give_back(holder)
            held[holder] -= 1
        assert slots.taken == held.total() <= total
    for holder in held.elements():
        slots.give_back(holder)
    assert slots.taken == 0


@given(st.lists(st.tuples(HOLDERS, st.integers(1, 60)), max_size=60))
def test_amounts_are_divided_as_single_places_are(asked: list[tuple[str, int]]) -> None:
    shares, held = BodyShares(100), Counter[str]()
    for holder, amount in asked:
        has_room = held[holder] + amount <= 100 - held.total()
        assert shares.take(holder, amount) == has_room
        held[holder] += amount * has_room
    for holder, amount in held.items():
        shares.give_back(holder, amount)
    assert shares.taken == 0
