"""What a package tells of one sequence while its answer grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

LogProbRow = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class HostPerf:
    """Times are of the system's steady clock, as ours are; 0: not told."""

    first_scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    new_blocks: int = 0
    reused_blocks: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class News:
    """What came since the last time; with `is_last` nothing more comes.

    `log_probs` has a row for each token: the token's own, then the likeliest. `prompt_log_probs` has such
    rows of the prompt, from its second token on; None where the package gives logits instead. The logits are
    rows of fp32. `context` comes with the last, of a prompt that was computed for another engine.
    """

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[LogProbRow] = field(default_factory=list)
    finish_reason: str | None = None
    was_stop_word: bool = False
    is_last: bool = False
    prompt_log_probs: list[LogProbRow] | None = None
    prompt_logits: np.ndarray[Any, Any] | None = None
    generation_logits: np.ndarray[Any, Any] | None = None
    perf: HostPerf | None = None
    cached_tokens: int = 0
    image_tokens: int = 0
    context: bytes | None = None


def log_prob_row(token_id: int, given: Any) -> LogProbRow:
    """Given are log probs by token, the token's own among them, or its own alone."""
    if not isinstance(given, dict):
        return [(token_id, float(given))]
    by_likelihood = sorted(
        ((each, float(found.logprob)) for each, found in given.items()), key=lambda pair: (-pair[1], pair[0])
    )
    own = next((found for each, found in by_likelihood if each == token_id), float("-inf"))
    return [(token_id, own), *by_likelihood]
