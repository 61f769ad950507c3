"""Events of one step, put together: each sequence is told of once."""

from __future__ import annotations

from typing import Any

from python_backend.engine.report import SequenceEvent


def merged(events: list[SequenceEvent]) -> list[SequenceEvent]:
    """One for each sequence, in the order of their first."""
    found: dict[tuple[int, int], SequenceEvent] = {}
    for event in events:
        place = event.key, event.sequence_index
        found[place] = _joined(found[place], event) if place in found else event
    return list(found.values())


def _joined(first: SequenceEvent, then: SequenceEvent) -> SequenceEvent:
    return SequenceEvent(
        first.key,
        first.token_ids + then.token_ids,
        then.finish_reason,
        then.error,
        first.sequence_index,
        _both(first.log_probs, then.log_probs),
        first.context_logits or then.context_logits,
        (first.generation_logits or b"") + (then.generation_logits or b"") or None,
        then.perf or first.perf,
        _both(first.top_log_probs, then.top_log_probs),
        context=then.context,
    )


def _both(first: list[Any] | None, then: list[Any] | None) -> list[Any] | None:
    return None if first is None and then is None else [*(first or ()), *(then or ())]
