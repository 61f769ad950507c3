"""Which rows of a step are asked of the model, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.executor import ModelExecutor
from python_backend.engine.steps.ports import ChunkResult
from python_backend.wire.errors import ErrorKind

VOCABULARY = 50


class FakeModel:
    """The likeliest token after a row is the row's own token plus 1; keeps what it was asked."""

    def __init__(self) -> None:
        self.copies: Row[BlockCopy] = []
        self.wanted_rows: Row[int] = []

    def forward(
        self, chunks: Row[Chunk], copies: Row[BlockCopy], wanted_rows: Row[int]
    ) -> NDArray[np.float32]:
        self.copies, self.wanted_rows = copies, wanted_rows
        token_ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
        rows = [scores_after(token_ids[row]) for row in wanted_rows]
        return np.array(rows, np.float32).reshape(-1, VOCABULARY)


def scores_after(token_id: int) -> NDArray[np.float32]:
    """The next token scores 9, and all others less than 1; after token -1 nothing is a number."""
    scores = -np.arange(VOCABULARY, dtype=np.float32)
    scores[token_id + 1] = 9 if token_id >= 0 else np.nan
    return scores


def chunk(start: int, count: int, prompt: int = 10, generated: int = 0, **request: Any) -> Chunk:
    """Of a sequence whose tokens are 0, 1, 2, ..."""
    sequence = Sequence(0, 0, GenerationRequest(list(range(prompt)), 30, **request), 30)
    sequence.tokens.extend(range(prompt, prompt + generated))
    sequence.computed_tokens = start
    return Chunk(sequence, start, count, yields_token=start + count == prompt + generated)


def results_of(model: FakeModel, *chunks: Chunk, copies: Row[BlockCopy] = ()) -> list[ChunkResult]:
    return ModelExecutor(model).launch(chunks, copies).results()


def rows_of_logits(logits: bytes | None) -> list[int]:
    """The tokens after which these rows are."""
    assert logits is not None
    rows = np.frombuffer(logits, np.float32).reshape(-1, VOCABULARY)
    assert (rows.max(1) == 9).all()
    return [int(token) - 1 for token in rows.argmax(1)]


def test_only_the_last_row_of_chunks_that_yield_a_token_is_wanted() -> None:
    model = FakeModel()
    results = results_of(
        model, chunk(0, 4), chunk(6, 4), chunk(12, 1, generated=3), chunk(3, 2), chunk(0, 10)
    )
    assert model.wanted_rows == [7, 8, 20]
    assert [result.token_id for result in results] == [None, 10, 13, None, 10]
    assert all(result.context_logits is None for result in results)


def test_a_step_that_yields_no_token_wants_no_rows() -> None:
    model = FakeModel()
    results = results_of(model, chunk(0, 4), chunk(4, 3))
    assert model.wanted_rows == []
    assert [result.token_id for result in results] == [None, None]


def test_block_copies_are_passed_to_the_model() -> None:
    model, copies = FakeModel(), [BlockCopy(1, 2), BlockCopy(3, 4)]
    results_of(model, chunk(9, 1), copies=copies)
    assert model.copies == copies


def test_context_logits_are_one_row_for_each_prompt_token_of_the_chunk() -> None:
    model = FakeModel()
    results = results_of(
        model,
        chunk(0, 4, returns_context_logits=True),
        chunk(4, 6, returns_context_logits=True),
        chunk(9, 1),
        chunk(10, 1, generated=1, returns_context_logits=True),
    )
    assert model.wanted_rows == list(range(12))
    assert rows_of_logits(results[0].context_logits) == [0, 1, 2, 3]
    assert rows_of_logits(results[1].context_logits) == [4, 5, 6, 7, 8, 9]
    assert results[2].context_logits is None
    assert results[3].context_logits is None
    assert [result.token_id for result in results] == [None, 10, 10, 11]


def test_context_logits_of_a_chunk_that_reaches_into_the_answer_cover_only_the_prompt() -> None:
    """After a preemption prompt and answer are computed again in one go."""
    (result,) = results_of(FakeModel(), chunk(7, 6, generated=3, returns_context_logits=True))
    assert rows_of_logits(result.context_logits) == [7, 8, 9]
    assert result.token_id == 13


def test_prompt_log_probs_are_of_the_tokens_that_follow_those_of_the_chunk() -> None:
    asked = {"top_log_probs": 1, "returns_prompt_log_probs": True}
    model = FakeModel()
    first, last, other = results_of(model, chunk(0, 4, **asked), chunk(4, 6, **asked), chunk(0, 3))
    assert model.wanted_rows == list(range(10))
    for result, following in ((first, [1, 2, 3, 4]), (last, [5, 6, 7, 8, 9])):
        assert result.prompt_log_probs is not None
        assert [[token_id for token_id, _ in row] for row in result.prompt_log_probs] == [
            [token_id, token_id] for token_id in following
        ], "the next token is the likeliest"
        assert all(-0.1 < log_prob < 0 for row in result.prompt_log_probs for _, log_prob in row)
    assert (last.token_id, last.context_logits) == (10, None)
    assert last.top_log_probs is not None
    assert [token_id for token_id, _ in last.top_log_probs] == [10, 10]
    assert other.prompt_log_probs is None


def test_generation_logits_and_log_probs_are_those_of_the_chosen_row() -> None:
    asked = {"returns_generation_logits": True, "returns_log_probs": True}
    one, other = results_of(FakeModel(), chunk(0, 10, **asked), chunk(9, 1))
    assert rows_of_logits(one.generation_logits) == [9]
    expected = 9 - np.log(np.exp(scores_after(9).astype(np.float64)).sum())
    assert one.log_prob is not None
    np.testing.assert_allclose(one.log_prob, expected, atol=1e-6)
    assert other.generation_logits is None
    assert other.log_prob is None


def test_scores_with_nan_give_no_token() -> None:
    broken = chunk(9, 1)
    broken.sequence.tokens[9] = -1
    results = results_of(FakeModel(), chunk(9, 1), broken, chunk(0, 10))
    assert [result.token_id for result in results] == [10, None, 10]
    assert [result.error for result in results] == [None] * 3


def test_an_error_of_one_sequence_is_passed_on_for_it_alone() -> None:
    no_token_left = {token: -float("inf") for token in range(VOCABULARY)}
    good, bad, other = results_of(
        FakeModel(), chunk(9, 1), chunk(9, 1, token_bias=no_token_left), chunk(0, 10)
    )
    assert bad.error is not None
    assert bad.error.kind is ErrorKind.INVALID_REQUEST
    assert bad.token_id is None
    assert [result.token_id for result in (good, other)] == [10, 10]
    assert good.error is other.error is None


@st.composite
def any_chunk(draw: st.DrawFn) -> Chunk:
    prompt, generated = draw(st.integers(1, 15)), draw(st.integers(0, 6))
    start = draw(st.integers(0, prompt + generated - 1))
    count = draw(st.integers(1, prompt + generated - start))
    asked = {
        "returns_context_logits": draw(st.booleans()),
        "returns_generation_logits": draw(st.booleans()),
    }
    return chunk(start, count, prompt, generated, **asked)


@settings(deadline=None)
@given(st.lists(any_chunk(), min_size=1, max_size=6))
def test_every_chunk_gets_its_own_result(chunks: list[Chunk]) -> None:
    model = FakeModel()
    results = results_of(model, *chunks)
    assert list(model.wanted_rows) == sorted(set(model.wanted_rows))
    for each, result in zip(chunks, results, strict=True):
        request, prompt = each.sequence.request, each.sequence.prompt_tokens
        assert result.token_id == (each.end if each.yields_token else None)
        if request.returns_context_logits and each.start < prompt:
            assert rows_of_logits(result.context_logits) == list(range(each.start, min(each.end, prompt)))
        else:
            assert result.context_logits is None
        if request.returns_generation_logits and each.yields_token:
            assert rows_of_logits(result.generation_logits) == [each.end - 1]
        else:
            assert result.generation_logits is None
