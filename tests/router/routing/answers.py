"""Answers, and the ways in which an engine may cut them into deltas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from router.core.generation import Delta, LoggedToken

PROMPT_TOKENS = 7


class Answer(NamedTuple):
    text: str
    completion_tokens: int
    tokens: tuple[LoggedToken, ...]


TEXTS = st.lists(st.sampled_from(["", "a", "b", " the", "é", "日本", "🙂", "\n"]), min_size=1, max_size=12)


@st.composite
def _answers(draw: st.DrawFn) -> Answer:
    """A token each; one without text is the first half of a character."""
    texts = draw(TEXTS)
    is_logged = draw(st.booleans())
    tokens = tuple(LoggedToken(text.encode(), -float(number), len(text)) for number, text in enumerate(texts))
    return Answer("".join(texts), len(texts), tokens if is_logged else ())


ANSWERS = _answers()


@st.composite
def chunks(draw: st.DrawFn, answer: Answer) -> list[Delta]:
    """Text, tokens and logged tokens each come when they come; the finish comes with the last or after it."""
    count = draw(st.integers(1, 6))
    text_at = _borders(draw, len(answer.text), count)
    tokens_at = _borders(draw, answer.completion_tokens, count)
    logged_at = _borders(draw, len(answer.tokens), count)
    finish_alone = draw(st.booleans())
    deltas = []
    for number in range(count):
        deltas.append(
            Delta(
                answer.text[text_at[number] : text_at[number + 1]],
                tokens_at[number + 1] - tokens_at[number],
                PROMPT_TOKENS,
                None if finish_alone or number < count - 1 else "end_id",
                None,
                3 if number == 0 else 0,
                answer.tokens[logged_at[number] : logged_at[number + 1]],
            )
        )
    if finish_alone:
        deltas.append(Delta("", 0, PROMPT_TOKENS, "end_id"))
    return deltas


def _borders(draw: st.DrawFn, size: int, count: int) -> list[int]:
    inner = draw(st.lists(st.integers(0, size), min_size=count - 1, max_size=count - 1))
    return [0, *sorted(inner), size]


def joined(deltas: Sequence[Delta]) -> Answer:
    return Answer(
        "".join(delta.text for delta in deltas),
        sum(delta.completion_tokens for delta in deltas),
        tuple(token for delta in deltas for token in delta.tokens),
    )
