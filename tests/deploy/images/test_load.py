"""How chats ended while containers restart: only what was whole counts as answered."""

from __future__ import annotations

import pytest

from deploy.images.exercise import allowed_endings
from deploy.images.load import ANSWERED, CUT, REFUSED, judged

PIECE = 'data: {"choices": [{"delta": {"content": "Paris"}}]}\n\n'


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (PIECE + "data: [DONE]\n\n", ANSWERED),
        (PIECE, CUT),
        ("", CUT),
        (PIECE + 'data: {"error": {"message": "gone"}}\n\ndata: [DONE]\n\n', CUT),
    ],
    ids=["whole", "without an end", "empty", "with an error"],
)
def test_a_stream_is_answered_when_it_ended_without_an_error(text: str, how: str) -> None:
    assert judged(text, stream=True)[0] == how


def test_the_answer_of_a_chat_that_is_not_streamed_is_its_text() -> None:
    assert judged('{"choices": [{"message": {"content": "Paris"}}]}', stream=False) == (ANSWERED, "Paris")


def test_only_what_the_docs_say_may_go_wrong_while_a_container_restarts() -> None:
    assert allowed_endings("postgres", 100.0) == {ANSWERED}
    assert allowed_endings("router", 100.0) == {ANSWERED, REFUSED}
    assert allowed_endings("triton-cpu", 59.0) == {ANSWERED, REFUSED}
    assert allowed_endings("triton-cpu", 61.0) == {ANSWERED, REFUSED, CUT}
