"""What is kept of the past: checked on any conversation there can be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.content.conversations.window import Entry, Window, fit

sizes = st.integers(1, 50)
rooms = st.integers(0, 600)


@st.composite
def conversations(draw: st.DrawFn) -> list[Entry]:
    """Turns with calls and results, also results that come late, and new input at the end."""
    entries: list[Entry] = []
    open_calls: list[str] = []
    made = 0
    steps = draw(st.lists(st.sampled_from(["system", "user", "assistant", "call", "result"]), max_size=30))
    new_from = draw(st.integers(0, len(steps)))
    for index, step in enumerate([*steps, "user"]):
        is_new = index >= new_from
        tokens = draw(sizes)
        if step == "call":
            made += 1
            open_calls.append(f"call_{made}")
            entries.append(Entry("assistant", tokens, is_new, makes=open_calls[-1]))
        elif step == "result" and open_calls:
            answers = open_calls.pop(draw(st.integers(0, len(open_calls) - 1)))
            entries.append(Entry("tool", tokens, is_new, answers=answers))
        elif step != "result":
            entries.append(Entry(step, tokens, is_new))
    return entries


def kept(entries: list[Entry], window: Window) -> list[Entry]:
    return [entries[index] for index in window.kept]


@settings(deadline=None)
@given(conversations(), rooms)
def test_a_window_fits_or_nothing_more_can_be_dropped(entries: list[Entry], room: int) -> None:
    window = fit(entries, room)
    assert window.tokens == sum(entry.tokens for entry in kept(entries, window))
    assert window.fits == (window.tokens <= room)
    if not window.fits:
        assert window.kept == fit(entries, 0).kept


@settings(deadline=None)
@given(conversations(), rooms)
def test_new_input_and_system_messages_are_always_kept(entries: list[Entry], room: int) -> None:
    window = fit(entries, room)
    must = {index for index, entry in enumerate(entries) if entry.is_new or entry.role == "system"}
    assert must <= set(window.kept)


@settings(deadline=None)
@given(conversations(), rooms)
def test_dropped_items_are_older_than_kept_ones(entries: list[Entry], room: int) -> None:
    window = fit(entries, room)
    dropped = set(range(len(entries))) - set(window.kept)
    said = [index for index in window.kept if entries[index].role != "system"]
    assert not dropped or not said or max(dropped) < min(said)


@settings(deadline=None)
@given(conversations(), rooms)
def test_a_call_goes_with_its_result(entries: list[Entry], room: int) -> None:
    there = kept(entries, fit(entries, room))
    made = {entry.makes for entry in there if entry.makes}
    answered = {entry.answers for entry in there if entry.answers}
    assert answered <= made
    both = {entry.answers for entry in entries if entry.answers}
    assert made & both == answered


@settings(deadline=None)
@given(conversations(), rooms)
def test_a_turn_is_kept_whole(entries: list[Entry], room: int) -> None:
    """Where the past is cut, what comes next was said by a user, or is new, or the past is empty."""
    window = fit(entries, room)
    dropped = set(range(len(entries))) - set(window.kept)
    said = [index for index in window.kept if entries[index].role != "system"]
    if dropped and said:
        first = entries[min(said)]
        assert first.role == "user" or first.is_new


@settings(deadline=None)
@given(conversations(), rooms, st.integers(0, 100))
def test_a_larger_context_never_keeps_fewer_items(entries: list[Entry], room: int, more: int) -> None:
    assert set(fit(entries, room).kept) <= set(fit(entries, room + more).kept)


@settings(deadline=None)
@given(conversations())
def test_all_items_are_kept_where_all_fit(entries: list[Entry]) -> None:
    window = fit(entries, sum(entry.tokens for entry in entries))
    assert window.kept == tuple(range(len(entries)))


def test_the_oldest_turns_are_dropped_and_no_more_than_needed() -> None:
    entries = [
        Entry("system", 10),
        Entry("user", 10),
        Entry("assistant", 10),
        Entry("user", 10),
        Entry("assistant", 10),
        Entry("user", 10, is_new=True),
    ]
    assert fit(entries, 60).kept == (0, 1, 2, 3, 4, 5)
    assert fit(entries, 59).kept == (0, 3, 4, 5)
    assert fit(entries, 40).kept == (0, 3, 4, 5)
    assert fit(entries, 39).kept == (0, 5)
    assert fit(entries, 19) == Window((0, 5), 20, False)


def test_a_new_result_keeps_the_turn_of_its_call() -> None:
    entries = [
        Entry("user", 10),
        Entry("assistant", 10),
        Entry("user", 10),
        Entry("assistant", 10, makes="a"),
        Entry("tool", 10, is_new=True, answers="a"),
    ]
    assert fit(entries, 0).kept == (2, 3, 4)


@pytest.mark.parametrize("entries", [[], [Entry("system", 5, is_new=True)]])
def test_a_conversation_without_droppable_turns_is_kept_whole(entries: list[Entry]) -> None:
    assert fit(entries, 10).kept == tuple(range(len(entries)))
    assert fit(entries, 10).fits
