"""Entries leave with their text: none before, none for what never does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.generation import LoggedToken
from router.request.choice import TokenLog


def token(characters: int, piece: bytes = b"x") -> LoggedToken:
    return LoggedToken(piece, -1.0, characters)


def test_log_probabilities_of_half_a_character_wait_for_the_other_half() -> None:
    log = TokenLog()
    first, second = token(0, b"\xc3"), token(1, b"\xa9")
    log.add([first])
    log.let(0)
    assert log.take() == []
    log.add([second])
    log.let(1)
    assert log.take() == [(0, first), (0, second)]


def test_held_back_tokens_wait_and_cut_tokens_never_leave() -> None:
    log = TokenLog()
    one, two, three = token(3), token(2), token(4)
    log.add([one, two])
    log.let(4)
    assert log.take() == [(0, one), (3, two)], "a part of the second has left"
    log.add([three])
    log.let(1)
    assert log.take() == []


def test_tokens_held_back_by_a_later_stage_wait() -> None:
    log = TokenLog()
    one, two = token(2), token(2)
    log.add([one, two])
    log.let(4, held=3)
    assert log.take() == [(0, one)]
    log.let(0)
    assert log.take() == [(2, two)]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 4), max_size=30),
    cuts=st.lists(st.integers(0, 5)),
    cut_off=st.integers(0, 10),
)
def test_the_tokens_that_left_are_those_whose_text_did(
    sizes: list[int], cuts: list[int], cut_off: int
) -> None:
    log, tokens = TokenLog(), [token(size) for size in sizes]
    whole = max(sum(sizes) - cut_off, 0)
    taken, passed = [], 0
    log.add(tokens)
    for cut in [*cuts, whole]:
        step = min(cut, whole - passed)
        passed += step
        log.let(step)
        taken += log.take()
    begins = [sum(sizes[:index]) for index in range(len(sizes))]
    assert taken == [(begin, each) for begin, each in zip(begins, tokens, strict=True) if begin < whole]
