from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.safety.folding import Folding
from tests.tiers import examples


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("ＨＥＲＯＮ", "heron"),
        ("he\u200bro\u00adn", "heron"),
        ("héron he\u0301ron", "heron heron"),
        ("a \t\n\u00a0\u2003b", "a b"),
        ("ﬁne Straße", "fine strasse"),
        ("ⓗⓔⓡⓞⓝ 𝐡𝐞𝐫𝐨𝐧", "heron heron"),
        ("한국", "한국".encode().decode()),
    ],
)
def test_texts_that_read_alike_fold_to_equal_text(text: str, folded: str) -> None:
    assert Folding().whole(text) == Folding().whole(folded)


def test_vowel_signs_of_other_scripts_are_kept() -> None:
    folding = Folding()
    assert folding.whole("कि") != folding.whole("कु")
    assert folding.whole("か") != folding.whole("が")


def test_latin_lookalikes_fold_to_equal_text_only_on_request() -> None:
    assert Folding().whole("hеrоn") != "heron"
    assert Folding(homoglyphs=True).whole("hеrоn") == "heron"
    folding = Folding(homoglyphs=True)
    assert folding.whole("ВОДКА") == folding.whole("водка")


@settings(max_examples=examples(75), deadline=None)
@given(st.text(max_size=60), st.integers(0, 60))
def test_folding_does_not_depend_on_where_a_text_is_split(text: str, at: int) -> None:
    folding = Folding(homoglyphs=True)
    first, offsets = folding.mapped(text[:at], "")
    second, _ = folding.mapped(text[at:], first[-1:])
    assert first + second == folding.whole(text)
    assert offsets == sorted(offsets)
    assert all(char in folding[ord(text[offset])] for char, offset in zip(first, offsets, strict=True))


@settings(max_examples=examples(75), deadline=None)
@given(st.text(max_size=60))
def test_folding_is_idempotent(text: str) -> None:
    folding = Folding(homoglyphs=True)
    assert folding.whole(folding.whole(text)) == folding.whole(text)
