from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.answer_text import StopScanner, is_refusal

_alphabet = st.sampled_from("ab<")
_stops = st.lists(st.text(_alphabet, min_size=1, max_size=4), min_size=1, max_size=4)
_chunks = st.lists(st.text(_alphabet, max_size=5), max_size=8)


def one_by_one(stops: list[str], text: str) -> str:
    """The plain statement of the rule: the first moment at which the text so far ends in a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


@given(stops=_stops, chunks=_chunks)
def test_the_cut_does_not_depend_on_how_the_text_is_split(stops: list[str], chunks: list[str]) -> None:
    scanner = StopScanner(stops)
    left = [scanner.feed(chunk) for chunk in chunks]
    if not scanner.stopped:
        left.append(scanner.flush())
    assert "".join(left) == one_by_one(stops, "".join(chunks))


@given(stops=_stops, chunks=_chunks)
def test_text_that_could_still_become_a_stop_string_is_held_back(stops: list[str], chunks: list[str]) -> None:
    scanner = StopScanner(stops)
    seen = left = ""
    for chunk in chunks:
        seen += chunk
        left += scanner.feed(chunk)
        if scanner.stopped:
            return
        held = seen[len(left) :]
        assert seen == left + held
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
        assert not any(
            seen.endswith(stop[:size]) for stop in stops for size in range(len(held) + 1, len(stop))
        )


@pytest.mark.parametrize(
    ("stops", "chunks", "expected"),
    [
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""]),
        (["stop"], ["st", "o", "ry"], ["", "", "story"]),
        (["😀!"], ["a😀", "?", "😀", "!"], ["a", "😀?", "", ""]),
    ],
)
def test_text_is_held_back_only_while_it_must_be(
    stops: list[str], chunks: list[str], expected: list[str]
) -> None:
    scanner = StopScanner(stops)
    assert [scanner.feed(chunk) for chunk in chunks] == expected


def test_after_a_stop_no_more_text_is_sent() -> None:
    scanner = StopScanner(["x"])
    assert scanner.feed("axb") == "a"
    assert scanner.stopped
    assert scanner.feed("more") == scanner.flush() == ""


def test_the_stop_that_ended_a_text_is_known() -> None:
    scanner = StopScanner(["END", "ND", "STOP"])
    assert scanner.feed("the E") == "the "
    assert scanner.found == ""
    assert scanner.feed("ND STOP") == ""
    assert scanner.found == "END"


@pytest.mark.parametrize(
    "opening",
    [
        "I'm sorry, but I can't help with that.",
        "I\u2019m sorry, I can\u2019t assist with that request.",
        "Sorry, I cannot do this",
        "Unfortunately, I am unable to",
        "  I cannot provide instructions",
        "As an AI language model, I do not",
        "I apologize, but I won't write that.",
        "**I can't** do that.",
    ],
)
def test_openings_that_decline_are_recognised_as_refusals(opening: str) -> None:
    assert is_refusal(opening)


@pytest.mark.parametrize(
    "opening",
    [
        "",
        "Sure, here is the code.",
        "I'm sorry to hear that you are ill. Rest, and drink enough.",
        "Sorry about the confusion: the answer is 4.",
        "The word cannot is written as one word.",
        "You said: I can't sleep. Try this.",
    ],
)
def test_other_openings_are_not_taken_for_refusals(opening: str) -> None:
    assert not is_refusal(opening)
