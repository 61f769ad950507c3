"""What was asked of a prompt's rows: their logits, or the log probs of the tokens that follow them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from python_backend.engine.cuda.pinned_memory import copy_to_host
from python_backend.engine.cuda.top_log_probs import TopLogProbs, top_log_probs

if TYPE_CHECKING:
    import torch

    from python_backend.engine.cuda.pinned_memory import Staging
    from python_backend.engine.scheduling.plan import Chunk
    from python_backend.engine.steps.ports import ChunkResult

# A prompt's logits may be more than the device has room for, and the sums over them need some too.
_LOGITS_AT_A_TIME = 512
_LOG_PROBS_AT_A_TIME = 128


@dataclass(slots=True)
class PromptResults:
    """Parts of one chunk's answer, in memory of the host that is filled when the step is over."""

    logits: list[torch.Tensor] = field(default_factory=list)
    log_probs: list[TopLogProbs] = field(default_factory=list)

    def add(self, chunk: Chunk, first: int, logits: torch.Tensor, staging: Staging) -> None:
        """The logits of the chunk's rows from `first` on."""
        sequence, request = chunk.sequence, chunk.sequence.request
        if request.returns_context_logits:
            self.logits.append(copy_to_host(logits))
        if request.returns_prompt_log_probs:
            start = chunk.start + first + 1
            following = sequence.tokens[start : min(start + len(logits), sequence.prompt_tokens)]
            if following:
                tokens = staging.upload(np.array(following, np.int32))
                rows = range(len(following))
                found = top_log_probs(logits[: len(rows)], tokens, rows, request.top_log_probs or 0)
                self.log_probs.append(found.to_host())

    def tell(self, chunk: Chunk, result: ChunkResult) -> None:
        if chunk.sequence.request.returns_context_logits:
            result.context_logits = b"".join(part.numpy().tobytes() for part in self.logits)
        if chunk.sequence.request.returns_prompt_log_probs:
            result.prompt_log_probs = [row for part in self.log_probs for row in part.by_row().values()]


def rows_at_a_time(chunk: Chunk) -> int:
    return _LOG_PROBS_AT_A_TIME if chunk.sequence.request.returns_prompt_log_probs else _LOGITS_AT_A_TIME


def prompt_rows(chunk: Chunk) -> int:
    """How many of the chunk's first rows are of a prompt of which something was asked."""
    if not chunk.sequence.request.asks_of_prompt:
        return 0
    return max(0, min(chunk.end, chunk.sequence.prompt_tokens) - chunk.start)


def wanted_rows(chunk: Chunk) -> range:
    """Rows of the chunk that someone asked for: those of the prompt, or the last, with guesses behind it."""
    if prompt_rows(chunk):
        return range(chunk.count)
    return range(chunk.count - 1 - len(chunk.drafts), chunk.count) if chunk.yields_token else range(0)
