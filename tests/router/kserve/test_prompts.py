from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import InflightError
from router.core.generation import MAX_NEW_TOKENS
from router.kserve.prompts import MAX_SEQUENCES, check_joinable, complete, echoes, need, shown_outputs
from router.kserve.tensors import Value


def column(dtype: str, *elements: Any) -> Value:
    return Value(dtype, (len(elements), 1), list(elements))


def values(rows: int = 1, **more: Value) -> dict[str, Value]:
    texts = column("BYTES", *[b"abc"] * rows)
    return {"text_input": texts, "max_tokens": column("INT32", *[5] * rows), **more}


def test_the_router_always_requests_the_outputs_that_it_accounts_by() -> None:
    sent = complete(values(return_num_input_tokens=column("BOOL", False)), whole=False)
    for flag in ("return_num_input_tokens", "return_num_output_tokens", "return_perf_metrics"):
        assert sent[flag].elements == [True]
    assert "stream" not in sent
    assert complete(values(stream=column("BOOL", True)), whole=True)["stream"].elements == [False]


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 9))
def test_stop_words_keep_to_few_widths_and_lose_nothing(rows: int, width: int) -> None:
    words = Value("BYTES", (rows, width), [f"{place}".encode() for place in range(rows * width)])
    sent = complete(values(rows, stop_words=words), whole=False)["stop_words"]
    assert sent.shape[1] % 4 == 0
    assert sent.shape[1] >= max(width, 4)
    for row in range(rows):
        assert sent.row(row)[:width] == words.row(row)
        assert not any(sent.row(row)[width:])


def test_token_amounts_have_limits() -> None:
    with pytest.raises(InflightError, match="max_tokens"):
        complete(values(max_tokens=column("INT32", 0)), whole=False)
    for wrong in (0, -1, MAX_SEQUENCES + 1):
        with pytest.raises(InflightError, match="num_return_sequences"):
            complete(values(num_return_sequences=column("INT32", wrong)), whole=False)
    most = complete(values(max_tokens=column("INT32", 2**31 - 1)), whole=False)["max_tokens"]
    assert most.elements == [MAX_NEW_TOKENS]


@pytest.mark.parametrize("name", ["stop_words", "bad_words"])
def test_only_so_many_words_are_taken(name: str) -> None:
    complete({**values(), name: Value("BYTES", (1, 2048), [b"a"] * 2048)}, whole=False)
    with pytest.raises(InflightError, match=f"'{name}' has 2049 words; allowed: up to 2048"):
        complete({**values(), name: Value("BYTES", (1, 2049), [b"a"] * 2049)}, whole=False)


def test_each_sequence_of_each_row_is_reserved_and_a_prompt_once() -> None:
    asked = values(2, num_return_sequences=column("INT32", 1, 3))
    found = need(complete(asked, whole=False), context_tokens=100)
    assert (found.prompt_tokens, found.completion_tokens) == (4, 20)


def test_only_a_whole_answer_echoes_its_prompt_and_only_unless_excluded() -> None:
    asked = values(
        3,
        exclude_input_in_output=column("BOOL", False, True, False),
        stream=column("BOOL", False, False, True),
    )
    assert echoes(complete(asked, whole=False)) == [True, False, False]
    assert echoes(complete(asked, whole=True)) == [True, False, True]


def test_outputs_that_only_the_router_requested_are_not_shown() -> None:
    usual = shown_outputs(values(), frozenset())
    assert "text_output" in usual
    assert usual.isdisjoint(
        {"num_input_tokens", "num_output_tokens", "first_token_time_ns", "acceptance_rate"}
    )
    wanted = shown_outputs(values(return_perf_metrics=column("BOOL", True)), frozenset())
    assert {"first_token_time_ns", "kv_cache_reused_blocks", "total_draft_tokens"} <= wanted
    assert shown_outputs(values(), frozenset({"num_input_tokens"})) == {"num_input_tokens"}


def test_rows_of_different_lengths_are_refused_where_they_would_have_to_be_one_tensor() -> None:
    asked = values(2, return_log_probs=column("BOOL", True, False))
    with pytest.raises(InflightError, match="request it as a stream"):
        check_joinable(asked, shown_outputs(asked, frozenset()))
    check_joinable(asked, frozenset({"cum_log_probs"}))
    check_joinable(values(return_log_probs=column("BOOL", True)), frozenset({"output_log_probs"}))
