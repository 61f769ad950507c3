"""What a step tells about a sequence: its tokens, what was asked to come with them, and its end."""

from __future__ import annotations

from python_backend.engine.report import PerfMetrics, SequenceEvent
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.ports import ChunkResult


def gather_of_prompt(chunk: Chunk, result: ChunkResult) -> None:
    """Rows of the whole prompt; a sequence that was spared computing it has them from its leader."""
    sequence = chunk.sequence
    if chunk.start > 0 and not sequence.context_logits and sequence.leader is not None:
        sequence.context_logits = sequence.leader.context_logits
        sequence.prompt_log_probs = sequence.leader.prompt_log_probs
        return
    if chunk.start == 0:
        sequence.context_logits, sequence.prompt_log_probs = [], []
    sequence.context_logits.append(result.context_logits or b"")
    sequence.prompt_log_probs += result.prompt_log_probs or ()


def token_event(
    sequence: Sequence, token_ids: list[int], result: ChunkResult, is_first: bool
) -> SequenceEvent:
    request = sequence.request
    is_plain = result.log_prob is None and result.generation_logits is None and result.top_log_probs is None
    if is_plain and not is_first and sequence.finish_reason is None:
        return SequenceEvent(sequence.key, token_ids, None, None, sequence.index)  # nearly always
    wants_context = is_first and request.returns_context_logits
    event = SequenceEvent(
        sequence.key,
        token_ids,
        sequence.finish_reason,
        sequence_index=sequence.index,
        log_probs=[result.log_prob] if token_ids and result.log_prob is not None else None,
        context_logits=b"".join(sequence.context_logits) if wants_context else None,
        generation_logits=result.generation_logits if token_ids else None,
        perf=_perf(sequence) if is_first or sequence.finish_reason else None,
        top_log_probs=_top_log_probs(sequence, result if token_ids else None, is_first) or None,
        steps=_steps(sequence) if sequence.finish_reason else None,
    )
    if request.num_return_sequences == 1:
        sequence.context_logits, sequence.prompt_log_probs = [], []  # nobody else will ask for them
    return event


def _top_log_probs(
    sequence: Sequence, result: ChunkResult | None, is_first: bool
) -> list[list[tuple[int, float]]]:
    rows = list(sequence.prompt_log_probs) if is_first else []
    return rows if result is None or result.top_log_probs is None else [*rows, result.top_log_probs]


def end_event(sequence: Sequence, error: str | None) -> SequenceEvent:
    """An end that comes without a token."""
    return SequenceEvent(
        sequence.key,
        [],
        sequence.finish_reason,
        error,
        sequence.index,
        perf=_perf(sequence),
        steps=_steps(sequence),
    )


def _steps(sequence: Sequence) -> list[list[int]] | None:
    return None if sequence.steps is None else sequence.steps.rows


def _perf(sequence: Sequence) -> PerfMetrics:
    return PerfMetrics(
        arrival_ns=sequence.arrival_ns,
        first_scheduled_ns=sequence.first_scheduled_ns,
        first_token_ns=sequence.first_token_ns,
        last_token_ns=sequence.last_token_ns,
        alloc_new_blocks=sequence.table.new_blocks,
        reused_blocks=sequence.table.reused_blocks,
        preemptions=sequence.preemptions,
        cached_tokens=sequence.cached_tokens,
        pauses=sequence.pauses,
        paused_ns=sequence.paused_ns,
        drafted_tokens=sequence.drafted_tokens,
        accepted_drafts=sequence.accepted_drafts,
        image_tokens=sequence.image_tokens,
    )
