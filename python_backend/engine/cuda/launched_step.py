"""A step that the device works on, and what it gives when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from python_backend.engine.cuda.sampler import NOTHING_LEFT
from python_backend.engine.sampling.tokens import nothing_left
from python_backend.engine.steps.ports import ChunkResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Row

    from python_backend.engine.cuda.prompt_results import PromptResults
    from python_backend.engine.cuda.top_log_probs import TopLogProbs
    from python_backend.engine.scheduling.plan import Chunk
    from python_backend.wire.errors import InflightError


@dataclass(frozen=True, slots=True)
class Choices:
    """As `Chosen`, in memory of the host that is filled when the step is over."""

    tokens: torch.Tensor
    log_probs: torch.Tensor | None
    top_log_probs: TopLogProbs | None
    raw_logits: dict[int, torch.Tensor]
    errors: dict[int, InflightError]


class LaunchedStep:
    """A step in flight; what it gives is on the host when it is over."""

    def __init__(
        self,
        chunks: Row[Chunk],
        yielding: Row[Chunk],
        of_prompts: dict[int, PromptResults],
        choices: Choices | None,
        choose: Callable[[], Choices] | None = None,
    ) -> None:
        self._chunks = chunks
        self._yielding = yielding
        self._of_prompts = of_prompts
        self._choices = choices
        self._choose = choose
        self._end = _event_behind_everything()  # of what is launched so far

    @property
    def is_computed(self) -> bool:
        return self._end is None or bool(self._end.query())  # type: ignore[no-untyped-call]  # as below

    @property
    def is_chosen(self) -> bool:
        return self._choose is None

    @property
    def is_over(self) -> bool:
        return self.is_chosen and self.is_computed

    def choose(self) -> None:
        if self._choose is not None:
            self._choices, self._choose = self._choose(), None
            self._end = _event_behind_everything()

    def results(self) -> list[ChunkResult]:
        if self._end is not None:
            self._end.synchronize()
        found = {id(chunk): ChunkResult() for chunk in self._chunks}
        if self._choices is not None:
            self._read_choices(found, self._choices)
        for chunk in self._chunks:
            if (of_prompt := self._of_prompts.get(id(chunk))) is not None:
                of_prompt.tell(chunk, found[id(chunk)])
        return list(found.values())

    def _read_choices(self, found: dict[int, ChunkResult], choices: Choices) -> None:
        log_probs = None if choices.log_probs is None else choices.log_probs.tolist()
        top = {} if choices.top_log_probs is None else choices.top_log_probs.by_row()
        before: Chunk | None = None
        for row, (chunk, token_id) in enumerate(zip(self._yielding, choices.tokens.tolist(), strict=True)):
            if not is_wanted(chunk):
                continue
            result = found[id(chunk)]
            if chunk is before:
                result = _behind_drafts(result)
            before = chunk
            if row in choices.errors:
                result.error = choices.errors[row]
            elif token_id >= 0:
                result.token_id = token_id
                if log_probs is not None and chunk.sequence.request.returns_log_probs:
                    result.log_prob = log_probs[row]
                if (count := chunk.sequence.request.top_log_probs) is not None:
                    result.top_log_probs = top[row][: count + 1]
                if (logits := choices.raw_logits.get(row)) is not None:
                    result.generation_logits = logits.numpy().tobytes()
            elif token_id == NOTHING_LEFT:
                choice = nothing_left(chunk.sequence)
                result.ends_guide, result.error = choice.ends_guide, choice.error


def _behind_drafts(result: ChunkResult) -> ChunkResult:
    """One more of a chunk, for the row of its next draft."""
    following = ChunkResult()
    result.behind_drafts = (*result.behind_drafts, lambda: following)
    return following


def is_wanted(chunk: Chunk) -> bool:
    """Of a chunk that was to yield a token: whether it still is, and somebody waits for it."""
    return chunk.yields_token and chunk.sequence.finish_reason is None


def _event_behind_everything() -> torch.cuda.Event | None:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types for it
        return None
    # Blocking: the thread sleeps, and whoever prepares guides beside it has the processor.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # as above
    event.record()
    return event
