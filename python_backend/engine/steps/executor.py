"""Runs a step's chunks through a model and chooses the next tokens."""

from __future__ import annotations

from collections.abc import Sequence as Row
from functools import partial
from typing import TYPE_CHECKING, Protocol

from python_backend.engine.sampling.tokens import Choice, choose_tokens, top_log_probs
from python_backend.engine.steps.ports import ChunkResult, Finished

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from python_backend.engine.kv.table import BlockCopy
    from python_backend.engine.scheduling.plan import Chunk
    from python_backend.engine.sequence import Sequence


class StepModel(Protocol):
    """A model with its cache of keys and values."""

    def forward(
        self, chunks: Row[Chunk], copies: Row[BlockCopy], wanted_rows: Row[int]
    ) -> NDArray[np.float32]:
        """Copies blocks, computes the chunks, and returns the logits of the wanted rows.

        Rows are the chunks' tokens one after the other.
        """


class ModelExecutor:
    """Computes a step while it is being launched."""

    depth = 1
    most_choices = None

    def __init__(self, model: StepModel) -> None:
        self._model = model

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept for a sequence but its blocks."""

    def launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> Finished:
        wanted = [_wanted_positions(chunk) for chunk in chunks]
        logits = self._model.forward(chunks, copies, _rows_of(chunks, wanted))
        results = []
        last_rows: list[int] = []
        row = 0
        for chunk, positions in zip(chunks, wanted, strict=True):
            prompt = min(positions.stop, chunk.sequence.prompt_tokens) - positions.start
            result = ChunkResult()
            if chunk.sequence.request.asks_of_prompt and prompt > 0:
                _tell_of_prompt(chunk, logits[row : row + prompt], result)
            results.append(result)
            row += len(positions)
            if chunk.drafts:
                behind = logits[row - len(chunk.drafts) : row]
                result.behind_drafts = [partial(_next_result, chunk.sequence, scores) for scores in behind]
            if chunk.yields_token:
                last_rows.append(row - 1 - len(chunk.drafts))
        self._choose(chunks, logits, last_rows, results)
        return Finished(results)

    def _choose(
        self,
        chunks: Row[Chunk],
        logits: NDArray[np.float32],
        last_rows: list[int],
        results: list[ChunkResult],
    ) -> None:
        yielding = [index for index, chunk in enumerate(chunks) if chunk.yields_token]
        scores = logits if len(last_rows) == len(logits) else logits[last_rows]
        choices = choose_tokens(scores, [chunks[index].sequence for index in yielding])
        for index, choice in zip(yielding, choices, strict=True):
            _tell(choice, results[index])


def _next_result(sequence: Sequence, scores: NDArray[np.float32]) -> ChunkResult:
    """The token behind a draft that was right, from the scores of the draft's row."""
    result = ChunkResult()
    (choice,) = choose_tokens(scores[None], [sequence])
    _tell(choice, result)
    return result


def _tell(choice: Choice, result: ChunkResult) -> None:
    result.token_id = choice.token_id
    result.ends_guide = choice.ends_guide
    result.log_prob = choice.log_prob
    result.top_log_probs = choice.top_log_probs
    result.generation_logits = choice.logits
    result.error = choice.error


def _wanted_positions(chunk: Chunk) -> range:
    """The positions of a chunk whose logits someone asked for: those of the prompt, or the last alone."""
    if chunk.sequence.request.asks_of_prompt and chunk.start < chunk.sequence.prompt_tokens:
        return range(chunk.start, chunk.end)
    first = chunk.end - 1 - len(chunk.drafts)
    return range(first, chunk.end) if chunk.yields_token else range(chunk.end, chunk.end)


def _tell_of_prompt(chunk: Chunk, logits: NDArray[np.float32], result: ChunkResult) -> None:
    """`logits` are those of the chunk's tokens of the prompt, each of which speaks of the next token."""
    sequence, request = chunk.sequence, chunk.sequence.request
    if request.returns_context_logits:
        result.context_logits = logits.tobytes()
    if request.returns_prompt_log_probs:
        following = sequence.tokens[chunk.start + 1 : sequence.prompt_tokens]
        result.prompt_log_probs = [
            top_log_probs(row, token_id, request.top_log_probs or 0)
            for row, token_id in zip(logits, following, strict=False)
        ]


def _rows_of(chunks: Row[Chunk], wanted: Row[range]) -> list[int]:
    rows: list[int] = []
    first_row = 0
    for chunk, positions in zip(chunks, wanted, strict=True):
        rows += [first_row + position - chunk.start for position in positions]
        first_row += chunk.count
    return rows
