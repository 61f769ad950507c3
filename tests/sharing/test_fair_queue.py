from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_backend.sharing.fair_queue import FairQueue


def served(queue: FairQueue[int], count: int) -> list[tuple[str, int] | None]:
    """One place, given back after each turn."""
    found = []
    for _ in range(count):
        found.append(turn := queue.next())
        if turn is not None:
            queue.done(turn[0])
    return found


def test_turns_go_round_the_tenants_and_by_arrival_within_each() -> None:
    queue: FairQueue[int] = FairQueue(places=1, waiting_each=10)
    for number in range(4):
        assert queue.join("greedy", number)
    assert queue.join("other", 9)
    assert served(queue, 6) == [
        ("greedy", 0),
        ("other", 9),
        ("greedy", 1),
        ("greedy", 2),
        ("greedy", 3),
        None,
    ]


def test_a_full_line_refuses_its_own_tenant_alone() -> None:
    queue: FairQueue[int] = FairQueue(places=1, waiting_each=2)
    assert [queue.join("greedy", number) for number in range(4)] == [True, True, True, False]
    assert queue.join("other", 9)


def test_no_tenant_takes_the_last_of_several_places() -> None:
    queue: FairQueue[int] = FairQueue(places=3, waiting_each=10)
    for number in range(5):
        queue.join("greedy", number)
    assert [queue.next(), queue.next(), queue.next()] == [("greedy", 0), ("greedy", 1), None]
    queue.join("other", 9)
    assert queue.next() == ("other", 9)


def test_who_rests_has_no_turn_until_it_is_woken_as_often() -> None:
    queue: FairQueue[int] = FairQueue(places=2, waiting_each=10)
    for number, tenant in enumerate(["tired", "tired", "other"]):
        queue.join(tenant, number)
    queue.rest("tired")
    queue.rest("tired")
    assert served(queue, 2) == [("other", 2), None]
    queue.wake("tired")
    assert queue.next() is None
    queue.wake("tired")
    assert served(queue, 2) == [("tired", 0), ("tired", 1)]


def test_who_leaves_is_forgotten() -> None:
    queue: FairQueue[int] = FairQueue(places=1, waiting_each=2)
    queue.join("a", 1)
    queue.join("a", 2)
    assert queue.leave("a", 1)
    assert not queue.leave("a", 1)
    assert served(queue, 2) == [("a", 2), None]


@given(
    places=st.integers(1, 4),
    waiting_each=st.integers(0, 4),
    acts=st.lists(
        st.tuples(st.sampled_from(["join", "leave", "next", "done"]), st.sampled_from("abc")), max_size=80
    ),
)
def test_places_are_never_exceeded_and_a_tenant_with_a_right_to_one_gets_it(
    places: int, waiting_each: int, acts: list[tuple[str, str]]
) -> None:
    queue: FairQueue[int] = FairQueue(places, waiting_each)
    running: list[str] = []
    waiting: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for number, (act, tenant) in enumerate(acts):
        if act == "join":
            if queue.join(tenant, number):
                waiting[tenant].append(number)
        elif act == "leave" and waiting[tenant]:
            assert queue.leave(tenant, waiting[tenant].pop())
        elif act == "next":
            turn = queue.next()
            may = [each for each in "abc" if waiting[each] and running.count(each) < max(1, places - 1)]
            assert (turn is None) == (len(running) == places or not may)
            if turn is not None:
                assert waiting[turn[0]].pop(0) == turn[1]
                running.append(turn[0])
        elif act == "done" and tenant in running:
            running.remove(tenant)
            queue.done(tenant)
        queue.check()
