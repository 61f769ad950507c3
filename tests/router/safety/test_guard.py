from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import GenerationCall
from router.core.images import Image
from router.safety.check import AllChecks, Check, Verdict
from router.safety.guard import Safety, StreamGuard
from router.safety.rules import Rule
from tests.router.safety.rule_files import check, disguised, split, terms
from tests.tiers import examples

FORBIDDEN = ["project heron", "xyzzy", "heronry"]
SERIAL = Rule("serial numbers", pattern=r"[a-z]{2}-\d{4}", max_chars=7, whole_words=False)
CHECK = check(terms(*FORBIDDEN), SERIAL)
BENIGN = st.text(st.sampled_from("abc de\n.é漢1-"), max_size=40)


def pour(judge: Check, chunks: list[str]) -> tuple[list[str], StreamGuard]:
    """What leaves after each chunk, and at the end."""
    guard = StreamGuard(judge.reader)
    left = []
    for chunk in chunks:
        left.append(guard.feed(chunk))
        if guard.tripped:
            return left, guard
    return [*left, guard.flush()], guard


@settings(max_examples=examples(100), deadline=None)
@given(st.data(), BENIGN, BENIGN, st.sampled_from([*FORBIDDEN, "ab-1234"]))
def test_forbidden_text_never_leaves_however_it_is_split_and_disguised(
    data: st.DataObject, before: str, after: str, word: str
) -> None:
    text = before + " " + data.draw(disguised(word)) + after
    left, guard = pour(CHECK, data.draw(split(text)))
    assert guard.tripped
    # Digits and letters of the benign text may make a serial number of their own, before this one.
    assert (before + " ").startswith("".join(left))


@pytest.mark.parametrize("word", FORBIDDEN)
def test_forbidden_text_never_leaves_split_in_two_at_any_character(word: str) -> None:
    text = f"so: {word}."
    for at in range(len(text) + 1):
        left, guard = pour(CHECK, [text[:at], text[at:]])
        assert guard.tripped
        assert "".join(left) == "so: "


@settings(max_examples=examples(75), deadline=None)
@given(st.data(), st.text(st.sampled_from("herony project12-ab\u200b. xz"), max_size=60))
def test_allowed_text_is_unchanged_and_held_no_longer_than_the_longest_rule(
    data: st.DataObject, text: str
) -> None:
    whole = CHECK.judge(text)
    chunks = data.draw(split(text))
    left, guard = pour(CHECK, chunks)
    assert guard.tripped == (whole is not None)
    if whole is not None:
        return
    assert "".join(left) == text
    longest = max(map(len, [*FORBIDDEN, "ab-1234"]))
    given_chars = left_chars = 0
    for chunk, piece in zip(chunks, left, strict=False):
        given_chars += len(chunk)
        left_chars += len(piece)
        held = text[left_chars:given_chars]
        assert len(held.replace("\u200b", "")) < longest + held.count("  ")


PATTERNS = [("a.?b", 3), ("[ab]{2,4}c", 5), ("(?:ab|ba)+", 8), ("a *b", 6), ("b.{0,3}1", 5)]
RULES = st.one_of(
    st.builds(
        lambda words, whole: Rule("t", terms=tuple(words), whole_words=whole),
        st.lists(st.text("abc1-", min_size=1, max_size=4), min_size=1, max_size=3),
        st.booleans(),
    ),
    st.builds(
        lambda bounded, whole: Rule("p", pattern=bounded[0], max_chars=bounded[1], whole_words=whole),
        st.sampled_from(PATTERNS),
        st.booleans(),
    ),
)


@settings(max_examples=examples(75), deadline=None)
@given(st.data(), st.lists(RULES, min_size=1, max_size=3), st.text("ab c-1\u200bA", max_size=25))
def test_a_checked_stream_ends_where_the_whole_text_would(
    data: st.DataObject, rules: list[Rule], text: str
) -> None:
    judge = check(*rules)
    left, guard = pour(judge, data.draw(split(text)))
    whole = judge.reader().read(text, is_last=True)
    assert guard.tripped == (whole.rule is not None) == (judge.judge(text) is not None)
    assert text[: whole.clear_chars].startswith("".join(left))
    assert guard.tripped or "".join(left) == text


def test_text_that_begins_no_rule_is_not_held_at_all() -> None:
    left, _ = pour(check(terms(*FORBIDDEN)), ["All", " is", " well", "."])
    assert left == ["All", " is", " well", ".", ""]


def test_a_whole_word_waits_for_what_follows() -> None:
    judge = check(terms("cat", whole_words=True))
    left, _ = pour(judge, ["a con", "cat", "enation of cat", "s"])
    assert left == ["a con", "", "catenation of ", "cats", ""]
    left, guard = pour(judge, ["the cat", "."])
    assert (left, guard.tripped) == (["the ", ""], True)
    left, guard = pour(judge, ["the cat"])
    assert (left, guard.tripped) == (["the ", ""], True)


def test_invisible_characters_inside_a_word_are_not_held_without_end() -> None:
    guard = StreamGuard(CHECK.reader)
    left = guard.feed("xyz") + "".join(guard.feed("\u200b" * 100) for _ in range(60))
    assert guard.tripped
    assert left == ""


def test_a_tripped_guard_sends_no_more_text() -> None:
    guard = StreamGuard(CHECK.reader)
    assert guard.feed("a xyzzy b") == "a "
    assert (guard.feed("more"), guard.flush(), guard.held_chars) == ("", "", 0)


def test_several_checks_work_as_one() -> None:
    both = AllChecks([check(terms("one two")), check(terms("two three", name="other"))])
    for text, rule, shown in (("a one two", "words", "a "), ("one xtwo  three", "other", "one x")):
        assert both.judge(text) == rule
        left, guard = pour(both, list(text))
        assert (guard.tripped, "".join(left)) == (True, shown)
    assert "".join(pour(both, list("one or two or three"))[0]) == "one or two or three"


class Broken:
    """A check that quotes the text in its error."""

    def __init__(self, clear_chars: int | None = None) -> None:
        self.clear_chars = clear_chars

    def judge(self, prompt: str) -> str | None:
        raise ValueError(f"cannot judge {prompt}")

    def reader(self) -> Broken:
        return self

    def read(self, held: str, is_last: bool) -> Verdict:
        if self.clear_chars is None:
            raise ValueError(f"cannot read {held}")
        return Verdict(self.clear_chars)


@pytest.mark.parametrize("clear_chars", [None, -1, 99])
def test_a_check_that_fails_passes_nothing_and_logs_no_text(
    clear_chars: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    guard = StreamGuard(lambda: Broken(clear_chars))
    with caplog.at_level(logging.DEBUG), pytest.raises(InflightError) as raised:
        guard.feed("secret words")
    assert raised.value.kind is ErrorKind.INTERNAL
    assert guard.flush() == ""
    assert "ValueError at" in caplog.text
    assert "secret" not in caplog.text + str(raised.value)


def test_a_reader_that_keeps_text_at_the_end_fails() -> None:
    guard = StreamGuard(lambda: Broken(0))
    assert guard.feed("text") == ""
    with pytest.raises(InflightError):
        guard.flush()


async def test_a_forbidden_prompt_is_refused_with_the_name_of_the_rule_alone() -> None:
    safety = Safety(CHECK)
    await safety.admit("any", ["fine", "all fine"])
    for prompt in ("tell me of Project  Heron", "x " * 20_000 + "project heron"):
        with pytest.raises(InflightError) as raised:
            await safety.admit("any", ["fine", prompt])
        assert raised.value.kind is ErrorKind.CONTENT_FILTER
        assert raised.value.message == "the prompt is refused by the rule 'words'"


async def test_token_ids_and_log_probabilities_are_refused_for_a_guarded_model() -> None:
    def call(**fields: Any) -> GenerationCall:
        return GenerationCall(**{"request_id": "1", "prompt": "hi", "max_tokens": 1, "seed": 1, **fields})

    safety = Safety(CHECK, ["guarded"])
    for param, refused in (
        ("prompt", call(prompt="", prompt_ids=(1,))),
        ("logprobs", call(top_log_probs=2)),
        ("return_token_ids", call(returns_token_ids=True)),
        ("messages", call(images=(Image(b"", "", "image/png", 1, 1),))),
    ):
        await safety.admit_calls("free", [refused])
        with pytest.raises(InflightError) as raised:
            await safety.admit_calls("guarded", [call(), refused])
        assert (raised.value.kind, raised.value.param) == (ErrorKind.UNSUPPORTED, param)
    await safety.admit_calls("guarded", [call()])
    with pytest.raises(InflightError, match="refused by the rule 'words'"):
        await safety.admit_calls("guarded", [call(), call(prompt="xyzzy")])


async def test_a_prompt_that_cannot_be_judged_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InflightError, match="the safety check failed"):
        await Safety(Broken()).admit("any", ["secret words"])
    assert "secret" not in caplog.text


async def test_only_the_chosen_models_are_checked() -> None:
    safety = Safety(CHECK, ["guarded"])
    await safety.admit("free", ["xyzzy"])
    assert safety.guard("free") is None
    assert safety.guard("guarded") is not None
    with pytest.raises(InflightError):
        await safety.admit("guarded", ["xyzzy"])


def test_pieces_of_a_word_of_two_tokens_are_held() -> None:
    text = "The password is xyzzy"
    for first, second in pairwise(range(0, len(text) + 1, 3)):
        left, guard = pour(CHECK, [text[:first], text[first:second], text[second:]])
        assert (guard.tripped, "".join(left)) == (True, "The password is ")
