"""What steps found becomes what sequences are told."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from python_backend.engine.report import FinishReason, SequenceEvent
from python_backend.engine.steps.events import end_event, gather_of_prompt, token_event
from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from python_backend.engine.scheduling.plan import Chunk
    from python_backend.engine.scheduling.scheduler import Scheduler
    from python_backend.engine.sequence import Sequence
    from python_backend.engine.steps.ports import ChunkResult
    from python_backend.engine.steps.speculator import Speculator

_log = logging.getLogger("inflight.engine")

NOT_A_NUMBER = InflightError(ErrorKind.ENGINE_FAILED, "the model's logits for the next token are not numbers")


class Answers:
    """Events wait here until they are told: also across a step that raises, after what ended before it."""

    def __init__(self, scheduler: Scheduler, speculator: Speculator | None) -> None:
        self._scheduler = scheduler
        self._speculator = speculator
        self._events: list[SequenceEvent] = []
        self.sequence_steps = 0
        self.generated_tokens = 0

    def told(self) -> list[SequenceEvent]:
        """What is to be told, once."""
        events, self._events = self._events, []
        return events

    def take(self, chunk: Chunk, result: ChunkResult, now_ns: int) -> None:
        """What cannot be taken ends its sequence, and no other."""
        try:
            self._take(chunk, result, now_ns)
        except Exception as error:
            _log.exception("the result of sequence %d could not be processed", chunk.sequence.key)
            self.fail(chunk.sequence, _not_taken(error))

    def fail(self, sequence: Sequence, error: InflightError) -> None:
        """What is the request's own fault says nothing about what was computed for it."""
        sequence.is_suspect = not error.kind.is_callers_fault
        self.end(sequence, FinishReason.ERROR, error.to_text())

    def end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        sequence.finish_reason = reason
        self._events.append(end_event(sequence, error))

    def _take(self, chunk: Chunk, result: ChunkResult, now_ns: int) -> None:
        """Telling is the last thing that is done, so that what raises before is not told as well."""
        sequence = chunk.sequence
        if result.error is not None:
            self.fail(sequence, result.error)
            return
        if chunk.yields_token and result.token_id is None and not result.ends_guide:
            self.fail(sequence, NOT_A_NUMBER)
            return
        self.sequence_steps += chunk.yields_token
        if chunk.drafts:
            self._take_drafted(chunk, result, now_ns)
            return
        self._scheduler.commit(chunk)
        if sequence.request.asks_of_prompt and sequence.generated_tokens == 0:
            gather_of_prompt(chunk, result)
        if chunk.yields_token:
            self._take_token(sequence, result, now_ns)

    def _take_drafted(self, chunk: Chunk, result: ChunkResult, now_ns: int) -> None:
        """The token, and one more for each draft that is right; the others were never there."""
        sequence, right = chunk.sequence, 0
        assert self._speculator is not None
        self._take_token(sequence, result, now_ns)
        for draft, behind in zip(chunk.drafts, result.behind_drafts, strict=True):
            if sequence.finish_reason is not None or sequence.tokens[-1] != draft:
                break
            right += 1
            if sequence.steps is not None:
                sequence.steps.add_token()
            following = behind()
            if following.error is not None or following.token_id is None:
                self.fail(sequence, following.error or NOT_A_NUMBER)
                break
            self._take_token(sequence, following, now_ns)
        self._speculator.observe(chunk, right)
        sequence.drafted_tokens += len(chunk.drafts)
        sequence.accepted_drafts += right
        chunk.count = 1 + right
        sequence.scheduled_tokens = chunk.end
        self._scheduler.commit(chunk)

    def _take_token(self, sequence: Sequence, result: ChunkResult, now_ns: int) -> None:
        is_first = sequence.first_token_ns == 0
        if is_first:
            sequence.first_token_ns = now_ns
        sequence.last_token_ns = now_ns
        token_ids = [] if result.token_id is None else sequence.accept(result.token_id)
        self.generated_tokens += len(token_ids)
        if result.ends_guide and sequence.finish_reason is None:
            sequence.finish_reason = FinishReason.STOP_WORDS
        self._events.append(token_event(sequence, token_ids, result, is_first))


def _not_taken(error: Exception) -> InflightError:
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return InflightError(ErrorKind.ENGINE_FAILED, f"the answer could not be continued: {cause}")
