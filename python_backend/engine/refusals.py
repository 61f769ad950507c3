"""Requests that could never run, told apart before they enter the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from python_backend.engine.request import GuideKind
from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from python_backend.engine.request import GenerationRequest, Guide, Retention, SamplingParams

_MOST_GUIDE_CHARACTERS = 1 << 18
# They are gathered in memory, and travel to the client as one tensor.
_MOST_LOGITS_BYTES = 256 << 20
# Every token of an answer is held against these.
_MOST_WORDS = 1024
_MOST_RETENTION_RANGES = 256


def _invalid(message: str) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, message)


def within_vocabulary(request: GenerationRequest, vocabulary: int) -> GenerationRequest:
    """With ids that the model has, where the request takes any."""
    if not request.takes_any_ids or max(request.prompt_ids, default=0) < vocabulary:
        return request
    known = [token_id % vocabulary if token_id >= vocabulary else token_id for token_id in request.prompt_ids]
    return replace(request, prompt_ids=known)


def refuse_impossible(
    request: GenerationRequest,
    vocabulary: int,
    max_sequence_tokens: int,
    max_return_sequences: int,
    max_images: int = 0,
) -> None:
    """Raises InflightError with a sentence that names the value and what is allowed."""
    prompt = request.prompt_ids
    if not prompt:
        raise _invalid("the prompt has no tokens")
    if len(prompt) >= max_sequence_tokens:
        raise InflightError(
            ErrorKind.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {len(prompt)} tokens; prompt and answer together may have at most "
            f"{max_sequence_tokens}",
        )
    _refuse_strays("the prompt holds token id", prompt, vocabulary)
    if request.max_new_tokens < 1:
        raise _invalid(f"request_output_len is {request.max_new_tokens}; it must be at least 1")
    if request.end_id is not None and not -1 <= request.end_id <= vocabulary:
        raise _invalid(f"end_id is {request.end_id}; allowed: -1 (none) to {vocabulary}")
    if not 1 <= request.num_return_sequences <= max_return_sequences:
        raise _invalid(
            f"num_return_sequences is {request.num_return_sequences}; allowed: 1 to {max_return_sequences}"
        )
    _refuse_logits(request, vocabulary, max_sequence_tokens)
    _refuse_many("images", len(request.images), "files", max_images)
    _refuse_many("stop_words_list", len(request.stop_sequences), "words", _MOST_WORDS)
    _refuse_many("bad_words_list", len(request.bad_sequences), "words", _MOST_WORDS)
    for bad in request.bad_sequences:
        _refuse_strays("bad_words_list holds token id", bad, vocabulary)
    _refuse_bias(request.token_bias, vocabulary)
    _refuse_sampling(request.sampling, vocabulary)
    _refuse_retention(request.retention)
    if request.guide is not None:
        _refuse_guide(request.guide)


def _refuse_strays(where: str, token_ids: Sequence[int], vocabulary: int) -> None:
    # At once, not one by one: prompts are long, and all others wait meanwhile.
    ids = np.asarray(token_ids)
    strays = ids[(ids < 0) | (ids >= vocabulary)]
    if len(strays):
        raise _invalid(f"{where} {strays[0]}; allowed: 0 to {vocabulary - 1}")


def _refuse_many(name: str, count: int, of_what: str, most: int) -> None:
    if count > most:
        raise _invalid(f"{name} has {count} {of_what}; allowed: at most {most}")


def _refuse_logits(request: GenerationRequest, vocabulary: int, max_sequence_tokens: int) -> None:
    prompt_tokens = len(request.prompt_ids)
    tokens = {
        "return_context_logits": prompt_tokens if request.returns_context_logits else 0,
        "return_generation_logits": min(request.max_new_tokens, max_sequence_tokens - prompt_tokens)
        if request.returns_generation_logits
        else 0,
    }
    total_tokens = sum(tokens.values()) * request.num_return_sequences
    total_bytes = total_tokens * vocabulary * 4
    if total_bytes > _MOST_LOGITS_BYTES:
        names = " and ".join(name for name, count in tokens.items() if count)
        raise _invalid(
            f"{names} for {request.num_return_sequences} sequence(s) would give the logits of {total_tokens} "
            f"tokens, {total_bytes} bytes; allowed: at most {_MOST_LOGITS_BYTES} bytes "
            f"({_MOST_LOGITS_BYTES // (vocabulary * 4)} tokens)"
        )


def _refuse_bias(token_bias: dict[int, float], vocabulary: int) -> None:
    _refuse_strays("embedding_bias holds token id", list(token_bias), vocabulary)
    for token_id, bias in token_bias.items():
        if not math.isfinite(bias):
            raise _invalid(f"embedding_bias of token id {token_id} is {bias}; it must be a number")


def _refuse_sampling(sampling: SamplingParams, vocabulary: int) -> None:
    s = sampling
    resets = f"from -1 (none) to {vocabulary - 1}"
    allowed = {
        "temperature": (s.temperature, s.temperature >= 0, "0 or above"),
        "runtime_top_k": (s.top_k, s.top_k >= 0, "0 or above"),
        "runtime_top_p": (s.top_p, s.top_p <= 1, "at most 1"),
        "runtime_top_p_min": (s.top_p_min, 0 <= s.top_p_min <= 1, "from 0 to 1"),
        "runtime_top_p_decay": (s.top_p_decay, 0 < s.top_p_decay <= 1, "above 0 and at most 1"),
        "runtime_top_p_reset_ids": (s.top_p_reset_id, -1 <= s.top_p_reset_id < vocabulary, resets),
        "repetition_penalty": (s.repetition_penalty, s.repetition_penalty > 0, "above 0"),
        "presence_penalty": (s.presence_penalty, True, "a number"),
        "frequency_penalty": (s.frequency_penalty, True, "a number"),
        "inflight_min_p": (s.min_p, 0 <= s.min_p <= 1, "from 0 to 1"),
        "min_tokens": (s.min_tokens, s.min_tokens >= 0, "0 or above"),
    }
    for name, (value, is_in_range, sentence) in allowed.items():
        if not (is_in_range and math.isfinite(value)):
            raise _invalid(f"{name} is {value}; it must be {sentence}")


def _refuse_retention(retention: Retention) -> None:
    _refuse_many("retention_token_range_starts", len(retention.ranges), "ranges", _MOST_RETENTION_RANGES)
    for part in retention.ranges:
        if part.start < 0:
            raise _invalid(f"a retention range starts at token {part.start}; it must be 0 or above")
        if part.end is not None and part.end <= part.start:
            raise _invalid(
                f"a retention range starts at token {part.start} and ends at {part.end}; it must end later, "
                "or at -1 (the last token)"
            )
        _refuse_keep("a retention range's", part.priority, part.duration_ms)
    _refuse_keep("the retention_decode", retention.decode_priority, retention.decode_duration_ms)


def _refuse_keep(whose: str, priority: int, duration_ms: int | None) -> None:
    if not 0 <= priority <= 100:
        raise _invalid(f"{whose} priority is {priority}; allowed: 0 to 100")
    if duration_ms is not None and duration_ms < 0:
        raise _invalid(f"{whose} duration is {duration_ms} ms; it must be 0 or above, or -1 (for ever)")


def _refuse_guide(guide: Guide) -> None:
    if not guide.text and guide.kind is not GuideKind.JSON:
        raise _invalid(f"guided_decoding_guide is empty; {guide.kind.value} needs a text")
    if len(guide.text) > _MOST_GUIDE_CHARACTERS:
        raise _invalid(
            f"guided_decoding_guide has {len(guide.text)} characters; allowed: at most "
            f"{_MOST_GUIDE_CHARACTERS}"
        )
