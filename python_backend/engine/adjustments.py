"""What a request does to the model's scores before a token is chosen: biases, penalties and bans."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from python_backend.engine.request import GenerationRequest
    from python_backend.engine.sequence import Sequence


def adjusted_scores(scores: NDArray[np.float32], sequence: Sequence) -> NDArray[np.float32] | None:
    """The scores after bias, penalties and bans, in this order; None where the request changes nothing.

    Raises InflightError where the sequence's guide cannot go on.
    """
    request = sequence.request
    banned = _banned_ids(sequence, len(scores))
    has_penalties = request.sampling.has_penalties
    if not (banned or has_penalties or request.token_bias or sequence.guide is not None):
        return None
    adjusted = scores.copy()
    if request.token_bias:
        _add_bias(adjusted, request)
    if has_penalties:
        _penalize(adjusted, sequence)
    if banned:
        adjusted[banned] = -math.inf
    if sequence.guide is not None:
        np.putmask(adjusted, ~sequence.guide.mask(request.end_id), -math.inf)
    return adjusted


def _add_bias(scores: NDArray[np.float32], request: GenerationRequest) -> None:
    known = [token_id for token_id in request.token_bias if 0 <= token_id < len(scores)]
    scores[known] += np.array([request.token_bias[token_id] for token_id in known], np.float32)


def _penalize(scores: NDArray[np.float32], sequence: Sequence) -> None:
    """Repetition weighs on prompt and answer, presence and frequency on the answer alone."""
    sampling = sequence.request.sampling
    if sampling.repetition_penalty != 1:
        seen = np.array(sequence.tokens)
        penalty = np.float32(sampling.repetition_penalty)
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    if sequence.generated_tokens and (sampling.presence_penalty or sampling.frequency_penalty):
        ids, counts = np.unique(sequence.generated_ids, return_counts=True)
        weight = sampling.presence_penalty + sampling.frequency_penalty * counts
        scores[ids] -= weight.astype(np.float32)


def _banned_ids(sequence: Sequence, vocabulary: int) -> list[int]:
    """Tokens that would complete a bad word, and those that would end the answer before `min_tokens`."""
    request, tokens = sequence.request, sequence.tokens
    banned = [
        bad[-1]
        for bad in request.bad_sequences
        if bad and (len(bad) == 1 or tuple(tokens[1 - len(bad) :]) == bad[:-1])
    ]
    if not sequence.may_end:
        banned += request.single_ends
    return [token_id for token_id in banned if 0 <= token_id < vocabulary]
