"""Requests that could never run, told apart before they enter the engine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from python_backend.engine.sequence import GenerationRequest, SamplingParams


def _invalid(message: str) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, message)


def refuse_impossible(request: GenerationRequest, vocabulary: int, max_sequence_tokens: int) -> None:
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
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        stray = next(token_id for token_id in prompt if not 0 <= token_id < vocabulary)
        raise _invalid(f"the prompt holds token id {stray}; allowed: 0 to {vocabulary - 1}")
    if request.max_new_tokens < 1:
        raise _invalid(f"max_new_tokens is {request.max_new_tokens}; it must be at least 1")
    if request.end_id is not None and not -1 <= request.end_id <= vocabulary:
        raise _invalid(f"end_id is {request.end_id}; allowed: -1 (none) to {vocabulary}")
    _refuse_sampling(request.sampling)


def _refuse_sampling(sampling: SamplingParams) -> None:
    allowed = {
        "temperature": (sampling.temperature >= 0, "0 or above"),
        "top_k": (sampling.top_k >= 0, "0 or above"),
        "top_p": (sampling.top_p <= 1, "at most 1"),
        "repetition_penalty": (sampling.repetition_penalty > 0, "above 0"),
        "presence_penalty": (True, "a number"),
        "frequency_penalty": (True, "a number"),
        "min_tokens": (sampling.min_tokens >= 0, "0 or above"),
    }
    for name, (is_in_range, sentence) in allowed.items():
        value = getattr(sampling, name)
        if not (is_in_range and math.isfinite(value)):
            raise _invalid(f"{name} is {value}; it must be {sentence}")
