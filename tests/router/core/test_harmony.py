"""Answers in harmony's channels, as gpt-oss writes them and as its template writes its history."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.answer_reader import CallList
from router.core.harmony import HarmonyReader

Read = tuple[str, str, list[tuple[str, Any]]]


def read(text: str, cuts: list[int]) -> Read:
    """Thoughts, text and calls, when the text came cut at these places."""
    reader = HarmonyReader(CallList(["weather", "time"]))
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    said, thought = "", ""
    for start, end in pairwise(places):
        said += reader.feed(text[start:end])
        thought += reader.take_thoughts()
    said += reader.flush()
    calls = [(call.name, json.loads(call.arguments)) for call in reader.calls]
    return thought + reader.take_thoughts(), said, calls


PARIS: tuple[str, Any] = ("weather", {"city": "Paris"})
THOUGHT = "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant"
AS_WRITTEN = (
    '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
)
AS_HISTORY = ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>'
PLAIN = '<|channel|>commentary to=functions.weather code<|message|>{"city": "Paris"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{THOUGHT}<|channel|>final<|message|>Sunny.<|return|>", ("Need the weather.", "Sunny.", [])),
        ("<|channel|>final<|message|>Sunny.", ("", "Sunny.", [])),
        (THOUGHT + AS_WRITTEN, ("Need the weather.", "", [PARIS])),
        (THOUGHT + AS_HISTORY, ("Need the weather.", "", [PARIS])),
        (AS_HISTORY, ("", "", [PARIS])),
        (PLAIN, ("", "", [PARIS])),
        (f"{PLAIN}<|call|><|start|>assistant{PLAIN}<|call|>", ("", "", [PARIS, PARIS])),
        ("<|channel|>commentary to=time<|message|><|call|>", ("", "", [("time", {})])),
        (
            f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{AS_WRITTEN}",
            ("", "I look.", [PARIS]),
        ),
        (
            "<|channel|>commentary to=functions.other<|message|>{}<|call|>",
            ("", "{}", []),
        ),
        ('<|channel|>commentary to=functions.weather<|message|>{"city', ("", '{"city', [])),
        ("<|channel|>analysis to=python<|message|>1 + 1<|call|>", ("1 + 1", "", [])),
        ("<|channel|>analysis<|message|>Hm, and on", ("Hm, and on", "", [])),
        (f"{THOUGHT}<|channel|>fin", ("Need the weather.", "", [])),
        ("<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.", ("Hm.", "Yes.", [])),
        ("Paris, not <|mark|>.", ("", "Paris, not <|mark|>.", [])),
        ("total: 3", ("", "total: 3", [])),
        ("to", ("", "to", [])),
        ("", ("", "", [])),
    ],
)
@settings(deadline=None)  # machines are busy
@given(cuts=st.lists(st.integers(0, 160)))
def test_channels_are_told_apart_however_the_text_is_split(
    text: str, expected: Read, cuts: list[int]
) -> None:
    assert read(text, cuts) == expected


PIECES = st.lists(
    st.sampled_from(
        ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>",
         "analysis", "final", "commentary", " to=functions.time", "to=time", "{}", "a", " ", "<|", "<", "|>"]
    ),
    max_size=12,
)  # fmt: skip


@settings(deadline=None)
@given(PIECES, st.lists(st.integers(0, 100)))
def test_any_answer_is_read_the_same_in_one_piece_and_in_many(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    assert read(text, cuts) == read(text, [])


def test_text_leaves_as_soon_as_it_cannot_be_a_mark() -> None:
    reader = HarmonyReader(CallList([]))
    assert reader.feed("<|channel|>final<|message|>One <") == "One "
    assert reader.held == 1
    assert reader.feed("b> two") == "<b> two"


def test_a_thought_is_known_as_one_while_it_lasts() -> None:
    reader = HarmonyReader(CallList([]))
    reader.feed("<|channel|>analysis<|message|>Hm")
    assert reader.is_thinking
    reader.feed(".<|end|>")
    assert not reader.is_thinking
