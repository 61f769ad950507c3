"""Who gets which place for an adapter, whatever is asked for and given back in any order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.adapters.adapter import Adapter
from python_backend.engine.adapters.places import Place, choose_place
from python_backend.engine.adapters.shelf import AdapterShelf, Loan
from python_backend.wire.errors import ErrorKind, InflightError
from tests.tiers import examples
from tests.waiting import wait_until


class Memory:
    """Notes what is where."""

    max_rank = 8

    def __init__(self, places: int) -> None:
        self.places = places
        self.there: dict[int, str] = {}

    def put(self, place: int, adapter: Adapter) -> None:
        assert place not in self.there
        if adapter.name == "large":
            raise InflightError(ErrorKind.OVERLOADED, "no memory for it")
        self.there[place] = adapter.name

    def clear(self, place: int) -> None:
        self.there.pop(place, None)


def read(name: str) -> Adapter:
    if name == "nobody":
        raise InflightError(ErrorKind.INVALID_REQUEST, "adapter nobody not found")
    return Adapter(name, 4, (), name.encode())


def settle(shelf: AdapterShelf, condition: Callable[[], bool]) -> None:
    def has_come() -> bool:
        if not condition():
            shelf.settle()
        return condition()

    wait_until(has_come)


def is_served(loan: Loan) -> bool:
    return loan.worn is not None or loan.error is not None


def test_a_free_place_goes_before_an_idle_one_and_that_before_one_in_use() -> None:
    idle, older, busy = Place("a", 0, 9), Place("b", 0, 2), Place("c", 3, 1)
    assert choose_place([idle, Place(), busy]) == (1, True)
    assert choose_place([idle, older, busy]) == (1, True)
    assert choose_place([busy, idle]) == (1, True)
    assert choose_place([Place("a", 1, 5), busy]) == (1, False)


def test_who_waits_for_a_place_is_not_passed_by_for_ever() -> None:
    """The adapter asked for longest ago is given to nobody else until its place has changed hands."""
    memory = Memory(1)
    shelf = AdapterShelf(memory, read)
    first = shelf.borrow("one")
    settle(shelf, lambda: is_served(first))
    waiting = shelf.borrow("two")
    settle(shelf, lambda: not shelf._reading or shelf._reading["two"].done())
    shelf.settle()
    late = shelf.borrow("one")
    shelf.settle()
    assert (waiting.worn, late.worn) == (None, None)
    shelf.give_back(first)
    settle(shelf, lambda: is_served(waiting))
    assert memory.there == {0: "two"}
    shelf.give_back(waiting)
    settle(shelf, lambda: is_served(late))
    assert memory.there == {0: "one"}


def test_a_waiter_that_gives_up_closes_no_place() -> None:
    shelf = AdapterShelf(Memory(1), read)
    first = shelf.borrow("one")
    settle(shelf, lambda: is_served(first))
    waiting = shelf.borrow("two")
    settle(shelf, lambda: shelf._reading["two"].done())
    shelf.settle()
    shelf.give_back(waiting)
    shelf.settle()
    assert shelf.borrow("one").worn is not None


@pytest.mark.parametrize(("name", "said"), [("nobody", "adapter nobody not found"), ("large", "no memory")])
def test_what_cannot_be_loaded_fails_its_loan_and_is_tried_again_the_next_time(name: str, said: str) -> None:
    memory = Memory(1)
    shelf = AdapterShelf(memory, read)
    for _ in range(2):
        loan = shelf.borrow(name)
        settle(shelf, lambda loan=loan: is_served(loan))  # type: ignore[misc]
        assert loan.error is not None
        assert said in loan.error.message
        shelf.give_back(loan)
    assert memory.there == {}
    good = shelf.borrow("one")
    settle(shelf, lambda: is_served(good))


@settings(max_examples=examples(30), deadline=None)
@given(
    places=st.integers(1, 3),
    acts=st.lists(st.tuples(st.sampled_from(["borrow", "return", "drop"]), st.integers(0, 4)), max_size=25),
)
def test_every_loan_is_served_in_the_end_and_nobody_loses_an_adapter(
    places: int, acts: list[tuple[str, int]]
) -> None:
    memory = Memory(places)
    shelf = AdapterShelf(memory, read)
    open_loans: list[Loan] = []
    for act, number in acts:
        if act == "borrow":
            open_loans.append(shelf.borrow(f"a{number}"))
        elif act == "drop":
            shelf.drop(f"a{number}")
        elif open_loans:
            shelf.give_back(open_loans.pop(number % len(open_loans)))
        shelf.settle()
        for loan in open_loans:
            if loan.worn is not None:
                assert memory.there[loan.worn.place] == loan.name
    while open_loans:
        settle(shelf, lambda: any(is_served(loan) for loan in open_loans))
        served = next(loan for loan in open_loans if is_served(loan))
        assert served.worn is not None
        assert memory.there[served.worn.place] == served.name
        open_loans.remove(served)
        shelf.give_back(served)
    assert len(memory.there) <= places
    shelf.close()
