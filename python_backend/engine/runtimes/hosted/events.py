"""From what a package told of a sequence to the events of the contract."""

from __future__ import annotations

from typing import Any

import numpy as np

from python_backend.engine.report import FinishReason, SequenceEvent
from python_backend.engine.runtimes.hosted.news import LogProbRow, News
from python_backend.engine.sampling.tokens import top_log_probs
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.events import end_event
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.pools import Part

_REASONS = {
    "length": FinishReason.LENGTH,
    "cancelled": FinishReason.CANCELLED,
    "abort": FinishReason.CANCELLED,
}


def take_news(sequence: Sequence, news: News, now_ns: int, title: str) -> SequenceEvent | None:
    """Moves the sequence on, to its end if that is among the news; None where there is nothing to tell."""
    is_first = bool(news.token_ids) and sequence.first_token_ns == 0
    token_ids = _accept(sequence, news.token_ids)
    if sequence.request.part is Part.CONTEXT:
        token_ids = []  # whoever answers chooses it again
    if news.token_ids:
        sequence.first_token_ns = sequence.first_token_ns or now_ns
        sequence.last_token_ns = now_ns
    if sequence.finish_reason is None and news.is_last:
        sequence.finish_reason = _reason(news)
    _take_perf(sequence, news)
    if sequence.finish_reason is None and not token_ids:
        return None
    if sequence.finish_reason is FinishReason.ERROR:
        return end_event(sequence, _untold(news, title).to_text())
    return _event(sequence, token_ids, news, is_first)


def missing_logits(sequence: Sequence, news: News, title: str) -> InflightError | None:
    """Why what was asked for cannot be told, at the end of an answer."""
    request = sequence.request
    if not news.is_last or _REASONS.get(news.finish_reason or "") is FinishReason.CANCELLED:
        return None
    asks_of_prompt = request.returns_context_logits or (
        request.returns_prompt_log_probs and news.prompt_log_probs is None
    )
    wanted = {
        "prompt": (asks_of_prompt, news.prompt_logits, len(request.prompt_ids)),
        "answer": (request.returns_generation_logits, news.generation_logits, len(news.token_ids)),
    }
    for whose, (is_wanted, rows, count) in wanted.items():
        if is_wanted and (rows is None or len(rows) < count):
            found = 0 if rows is None else len(rows)
            return InflightError(
                ErrorKind.ENGINE_FAILED,
                f"{title} returned logits for {found} of the {count} tokens of the {whose}",
            )
    return None


def _accept(sequence: Sequence, token_ids: list[int]) -> list[int]:
    """Up to the one that ends the answer: of what was computed behind it nobody hears."""
    taken: list[int] = []
    for token_id in token_ids:
        if sequence.finish_reason is not None:
            break
        taken += sequence.accept(token_id)
    return taken


def _reason(news: News) -> FinishReason:
    if news.finish_reason == "stop":
        return FinishReason.STOP_WORDS if news.was_stop_word else FinishReason.END_ID
    return _REASONS.get(news.finish_reason or "", FinishReason.ERROR)


def _untold(news: News, title: str) -> InflightError:
    return InflightError(
        ErrorKind.ENGINE_FAILED,
        f"{title} ended the answer with the finish reason {news.finish_reason} and no error",
    )


def _event(sequence: Sequence, token_ids: list[int], news: News, is_first: bool) -> SequenceEvent:
    request, count = sequence.request, len(token_ids)
    rows = news.log_probs[:count]
    told = end_event(sequence, None) if is_first or sequence.finish_reason else None
    return SequenceEvent(
        sequence.key,
        token_ids,
        sequence.finish_reason,
        sequence_index=sequence.index,
        log_probs=[row[0][1] for row in rows] if request.returns_log_probs and count else None,
        context_logits=_bytes(news.prompt_logits) if request.returns_context_logits else None,
        generation_logits=_bytes(news.generation_logits, count)
        if request.returns_generation_logits
        else None,
        perf=told.perf if told else None,
        top_log_probs=_top_rows(sequence, rows, news) or None,
        context=news.context,
    )


def _top_rows(sequence: Sequence, rows: list[LogProbRow], news: News) -> list[LogProbRow]:
    """Those of the prompt come before, from its second token on."""
    wanted = sequence.request.top_log_probs
    if wanted is None:
        return []
    told = [row[: 1 + wanted] for row in rows]
    if not sequence.request.returns_prompt_log_probs:
        return told
    if news.prompt_log_probs is not None:
        return [*(row[: 1 + wanted] for row in news.prompt_log_probs), *told]
    if news.prompt_logits is None:
        return told
    prompt = sequence.request.prompt_ids
    before = [
        top_log_probs(news.prompt_logits[place], token_id, wanted)
        for place, token_id in enumerate(prompt[1:])
    ]
    return [*before, *told]


def _bytes(rows: np.ndarray[Any, Any] | None, count: int | None = None) -> bytes | None:
    return None if rows is None else rows[:count].astype(np.float32, copy=False).tobytes()


def _take_perf(sequence: Sequence, news: News) -> None:
    sequence.cached_tokens = news.cached_tokens or sequence.cached_tokens
    sequence.image_tokens = news.image_tokens or sequence.image_tokens
    if news.perf is None:
        return
    sequence.first_scheduled_ns = news.perf.first_scheduled_ns or sequence.first_scheduled_ns
    sequence.first_token_ns = news.perf.first_token_ns or sequence.first_token_ns
    sequence.last_token_ns = news.perf.last_token_ns or sequence.last_token_ns
    sequence.table.new_blocks = news.perf.new_blocks
    sequence.table.reused_blocks = news.perf.reused_blocks
    sequence.preemptions = news.perf.preemptions
