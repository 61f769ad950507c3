"""Long texts are tokenized from where they differ from earlier ones, into the same tokens."""

from __future__ import annotations

import json
from array import array

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from python_backend.text import remembered_texts
from python_backend.text.remembered_texts import RememberedTexts, cuts_words_first
from tests.text.tokenizer_kinds import byte_level_backend

WORDS = [
    "one",
    "two",
    "three,",
    "four\n",
    "five",
    "",
    "six",
    "7",
    "x1048576",
    "eight-nine",
    "ten.",
    "Änderung",
    "😀",
    "über",
    "</s>",
    "it's",
]


@pytest.fixture(autouse=True)
def short_texts_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_texts, "LEAST_CHARACTERS", 200)
    monkeypatch.setattr(remembered_texts, "_DISTANCES", (200, 60))
    monkeypatch.setattr(remembered_texts, "_CHECKED_CHARACTERS", 20)


class Noting(RememberedTexts):
    """Knows how many characters were tokenized."""

    characters = 0

    def _encode(self, text: str, add_special_tokens: bool = False) -> array[int]:
        self.characters += len(text)
        return super()._encode(text, add_special_tokens)

    def needed(self, whose: str, text: str) -> int:
        before = self.characters
        found = self.encode_batch([text], [whose], True)
        assert [ids.tolist() for ids in found] == [self._backend.encode(text).ids]
        return self.characters - before


def texts() -> Noting:
    return Noting(byte_level_backend(), is_trusted=True)


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.lists(st.sampled_from(WORDS), max_size=60)), min_size=1, max_size=8
    )
)
def test_tokens_are_those_of_the_whole_text_wherever_it_differs(edits: list[tuple[float, list[str]]]) -> None:
    remembered, text = texts(), "one two three four five " * 20
    for part, words in edits:
        text = text[: int(part * len(text))] + " ".join(words) + text[int(part * len(text)) + 1 :]
        for flag in (True, False):
            found = remembered.encode_batch([text, "one"], ["ann", "ann"], flag)
            assert [ids.tolist() for ids in found] == [
                remembered._backend.encode(each, add_special_tokens=flag).ids for each in (text, "one")
            ]


@pytest.mark.parametrize("words", ["the quick fox jumps over the lazy dog ", "row17 v2 x1048576 a4 "])
def test_a_conversation_that_goes_on_is_tokenized_from_shortly_before_its_end(words: str) -> None:
    remembered, text = texts(), words * 100
    assert remembered.needed("ann", text) > len(text)
    for turn in range(5):
        text += f"and number {turn} is another turn of it "
        assert remembered.needed("ann", text) < 500


def test_a_text_of_another_tenant_is_tokenized_whole() -> None:
    remembered, text = texts(), "the quick fox jumps over the lazy dog " * 100
    remembered.needed("ann", text)
    assert remembered.needed("bob", text + "and more") > len(text)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_texts, "_MOST_CHARACTERS", 3000)
    remembered = texts()
    for number in range(40):
        remembered.needed("ann", f"{number} the quick fox jumps over the lazy dog " * 20)
        assert remembered._characters == sum(len(each.text) for each in remembered._texts.values()) <= 3000
    assert remembered._texts


def test_a_tokenizer_that_gives_other_tokens_is_not_trusted_for_long() -> None:
    """One that marks the beginning of what it is given, whatever that is."""
    backend = byte_level_backend()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.normalizer = tokenizers.normalizers.Prepend("x")
    remembered, text = Noting(backend, is_trusted=True), "the quick fox jumps over the lazy dog " * 20
    for _ in range(6):
        text += "and so on it goes "
        remembered.needed("ann", text)


@pytest.mark.parametrize(
    ("changes", "is_trusted"),
    [({}, True), ({"pre_tokenizer": None}, False), ({"model": {"type": "Unigram"}}, False)],
)
def test_tokenizers_that_cut_words_first_are_trusted(changes: dict[str, object], is_trusted: bool) -> None:
    assert cuts_words_first({**json.loads(byte_level_backend().to_str()), **changes}) is is_trusted
