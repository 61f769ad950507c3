"""Choosing each sequence's next token from its logits.

A row's outcome is a function of that row and its sequence alone, and the number drawn for a token one of the
seed, the sequence's index and the token's place in the answer: a seed gives the same answer alone, in company
and after a preemption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from python_backend.engine.sampling.adjustments import adjusted_scores
from python_backend.engine.sampling.draw import chance, draw, floor_of_top_k
from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from collections.abc import Sequence as Row

    from numpy.typing import NDArray

    from python_backend.engine.request import SamplingParams
    from python_backend.engine.sequence import Sequence


# Less than this and only the likeliest token is left.
_LEAST_TOP_P = 1e-6


@dataclass(slots=True)
class Choice:
    """What was chosen for one row.

    `token_id` is None where the logits are not numbers, where `ends_guide` says that the guide allows nothing
    more, and where `error` says why this sequence alone cannot go on. `log_prob`, `top_log_probs` (the token,
    then the likeliest) and `logits` (fp32) are the model's own, before any setting of the request changed
    them.
    """

    token_id: int | None = None
    ends_guide: bool = False
    log_prob: float | None = None
    top_log_probs: list[tuple[int, float]] | None = None
    logits: bytes | None = None
    error: InflightError | None = None


def choose_tokens(logits: NDArray[np.float32], sequences: Row[Sequence]) -> list[Choice]:
    """The next token of each row; leaves `logits` as they are."""
    if not sequences:
        return []
    likeliest = logits.argmax(axis=1)
    peaks = logits[np.arange(len(sequences)), likeliest].tolist()
    choices = []
    for row, (sequence, token_id, peak) in enumerate(
        zip(sequences, likeliest.tolist(), peaks, strict=True),
    ):
        choice = Choice()
        if math.isfinite(peak):
            choice = _choose(logits[row], sequence, token_id, peak)
        if choice.token_id is not None and sequence.request.returns_log_probs:
            choice.log_prob = log_prob(logits[row], choice.token_id, peak)
        if choice.token_id is not None and sequence.request.top_log_probs is not None:
            choice.top_log_probs = top_log_probs(logits[row], choice.token_id, sequence.request.top_log_probs)
        if choice.token_id is not None and sequence.request.returns_generation_logits:
            choice.logits = logits[row].astype(np.float32, copy=False).tobytes()
        choices.append(choice)
    return choices


def _choose(scores: NDArray[np.float32], sequence: Sequence, likeliest: int, peak: float) -> Choice:
    try:
        adjusted = adjusted_scores(scores, sequence)
    except InflightError as error:
        return Choice(error=error)
    if adjusted is not None:
        scores = adjusted
        likeliest = int(scores.argmax())
        peak = float(scores[likeliest])
        if peak == -math.inf:
            return nothing_left(sequence)
        if not math.isfinite(peak):
            return Choice()
    sampling = sequence.request.sampling
    if sampling.is_greedy:
        return Choice(likeliest)
    point = chance(sampling.seed, sequence.index, sequence.generated_tokens)
    top_p = current_top_p(sampling, sequence.tokens, sequence.generated_tokens)
    return Choice(draw(scores, peak, sampling.temperature, sampling.top_k, top_p, point, sampling.min_p))


def nothing_left(sequence: Sequence) -> Choice:
    """Where the guide lets the answer end, that is its end; elsewhere it is the request's fault."""
    if sequence.guide is not None and sequence.guide.may_end:
        return Choice(ends_guide=True)
    names = ["bad_words_list", "embedding_bias", "min_tokens"]
    if sequence.guide is not None:
        names.append("guided_decoding_guide")
    text = f"{', '.join(names[:-1])} and {names[-1]} together leave no token to choose"
    return Choice(error=InflightError(ErrorKind.INVALID_REQUEST, text))


def current_top_p(sampling: SamplingParams, tokens: Row[int], generated_tokens: int) -> float:
    """`top_p` after decaying once for each token of the answer since the last reset; 1 where it is unset."""
    start, decay, least = sampling.top_p, sampling.top_p_decay, max(sampling.top_p_min, _LEAST_TOP_P)
    if start <= 0:
        return 1.0
    if not 0 < decay < 1 or start <= least:
        return start
    # Further back than it takes to come down to the least, a reset would change nothing.
    steps = min(generated_tokens, math.ceil(math.log(least / start) / math.log(decay)))
    if sampling.top_p_reset_id >= 0 and steps:
        latest_first = tokens[: -steps - 1 : -1]
        if sampling.top_p_reset_id in latest_first:
            steps = latest_first.index(sampling.top_p_reset_id)
    return max(start * decay**steps, least)


def log_prob(logits: NDArray[np.float32], token_id: int, peak: float) -> float:
    return _log_probs(logits, [token_id], peak)[0]


def top_log_probs(logits: NDArray[np.float32], token_id: int, count: int) -> list[tuple[int, float]]:
    """The token itself, then the likeliest, each with its log prob."""
    ids = [token_id, *_likeliest_ids(logits, count)]
    return list(zip(ids, _log_probs(logits, ids, float(logits.max())), strict=True))


def _log_probs(logits: NDArray[np.float32], token_ids: Row[int], peak: float) -> list[float]:
    """The natural logarithms of the shares that softmax gives to tokens; `peak` is the largest logit."""
    whole = np.exp(logits - np.float32(peak)).sum(dtype=np.float64)
    below_one = peak + math.log(whole)
    return [float(logits[token_id]) - below_one for token_id in token_ids]


def _likeliest_ids(logits: NDArray[np.float32], count: int) -> list[int]:
    """The likeliest first, and of equals the lowest id."""
    count = min(count, len(logits))
    if count == 0:
        return []
    candidates = np.flatnonzero(logits >= floor_of_top_k(logits, count))
    found: list[int] = candidates[np.argsort(-logits[candidates], kind="stable")[:count]].tolist()
    return found
