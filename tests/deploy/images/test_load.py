"""How chats ended while containers restart: only what was whole counts as answered."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from deploy.images.exercise import allowed_endings
from deploy.images.load import ANSWERED, CUT, REFUSED, Load, judged

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


def test_a_chat_that_found_no_connection_was_refused_and_not_lost() -> None:
    with socket.socket() as nobody, ExitStack() as closing:
        nobody.bind(("127.0.0.1", 0))
        load = Load(f"http://127.0.0.1:{nobody.getsockname()[1]}", "key", "model")
        closing.callback(load.close)
        assert load.ask()[0] == REFUSED, "nobody listens"
        nobody.listen(0)
        closing.enter_context(socket.create_connection(nobody.getsockname()))  # all that it takes
        assert load.ask()[0] == REFUSED, "nobody lets it in"


def test_only_what_the_docs_say_may_go_wrong_while_a_container_restarts() -> None:
    assert allowed_endings("postgres", 100.0) == {ANSWERED}
    assert allowed_endings("router", 100.0) == {ANSWERED, REFUSED}
    assert allowed_endings("triton-cpu", 59.0) == {ANSWERED, REFUSED}
    assert allowed_endings("triton-cpu", 61.0) == {ANSWERED, REFUSED, CUT}
