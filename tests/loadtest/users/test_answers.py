from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.results import RequestResult
from loadtest.users.answers import StreamedAnswer, embedding_tokens, error_sentence, note_moments


def event(text: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n".encode()


@settings(deadline=None)
@given(st.lists(st.text(min_size=1, max_size=8), max_size=8), st.integers(1, 40))
def test_the_text_is_the_same_wherever_the_bytes_are_cut(texts: list[str], size: int) -> None:
    data = b"".join(map(event, texts)) + b"data: [DONE]\n\n"
    answer = StreamedAnswer()
    for start in range(0, len(data), size):
        answer.feed(data[start : start + size], float(start))
    assert answer.text == "".join(texts)
    assert answer.is_whole
    assert len(answer.moments_s) == len(texts)
    assert answer.moments_s == sorted(answer.moments_s)


def test_a_piece_has_the_moment_of_the_bytes_that_ended_it() -> None:
    answer = StreamedAnswer()
    answer.feed(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n', 0.1)
    whole = event("a")
    answer.feed(whole[:10], 0.2)
    answer.feed(whole[10:], 0.3)
    answer.feed(event("b") + event("c"), 0.5)
    assert answer.moments_s == [0.3, 0.5, 0.5]  # the opening without text is no token


def test_usage_and_errors_are_read_from_the_stream() -> None:
    answer = StreamedAnswer()
    answer.feed(b'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}\n', 1.0)
    answer.feed(b'data: {"error": {"message": "the engine died"}}\n', 1.0)
    assert (answer.prompt_tokens, answer.completion_tokens) == (4, 2)
    assert answer.error == "the engine died"
    assert not answer.is_whole


def test_gaps_are_those_of_tokens_where_a_piece_has_several() -> None:
    result = RequestResult("chat", 0.0, completion_tokens=7)
    note_moments(result, [0.5, 0.8, 1.0])
    assert result.first_token_s == 0.5
    assert result.gaps_s == pytest.approx([0.1, 0.2 / 3], abs=1e-6)
    assert result.longest_gap_s == pytest.approx(0.3)


def test_an_answer_without_text_has_no_first_token() -> None:
    result = RequestResult("chat", 0.0)
    note_moments(result, [])
    assert result.first_token_s is None


def test_an_answer_without_an_embedding_is_an_error() -> None:
    assert embedding_tokens(b'{"data": [{"embedding": [1]}], "usage": {"prompt_tokens": 3}}') == 3
    with pytest.raises(ValueError, match="no embedding"):
        embedding_tokens(b'{"data": []}')


def test_an_error_is_the_servers_message_or_its_first_words() -> None:
    assert error_sentence(400, b'{"error": {"message": "no such model"}}') == "HTTP 400: no such model"
    assert error_sentence(400, b'{"error": "no such model"}') == "HTTP 400: no such model"
    assert error_sentence(502, b"<html>") == "HTTP 502: <html>"
