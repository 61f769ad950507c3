"""Rules as a file has them, and the ways a text can be written so that it still reads the same."""

from __future__ import annotations

from hypothesis import strategies as st

from router.safety.rules import Rule, RuleCheck, Rules

INVISIBLE = [
    "\u200b",
    "\u200c",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\u00ad",
    "\u034f",
    "\ufe0f",
    "\u180e",
    "\u0301",
]
FULL_WIDTH = str.maketrans({chr(0x21 + i): chr(0xFF01 + i) for i in range(0x5E)})


def check(*rules: Rule, homoglyphs: bool = False) -> RuleCheck:
    return RuleCheck(Rules(rules, homoglyphs))


def terms(*words: str, whole_words: bool = False, name: str = "words") -> Rule:
    return Rule(name, terms=words, whole_words=whole_words)


@st.composite
def disguised(draw: st.DrawFn, word: str) -> str:
    """The word in another case or width, with invisible characters inside it."""
    parts = []
    for index, char in enumerate(word):
        shown = draw(st.sampled_from([char, char.upper(), char.translate(FULL_WIDTH)]))
        hidden = draw(st.lists(st.sampled_from(INVISIBLE), max_size=2)) if index else []
        parts.append("".join(hidden) + shown)
    return "".join(parts)


@st.composite
def split(draw: st.DrawFn, text: str) -> list[str]:
    """Chunks of one to a few characters."""
    chunks, at = [], 0
    while at < len(text):
        size = draw(st.integers(1, 5))
        chunks.append(text[at : at + size])
        at += size
    return chunks
