"""What a request does to the model's scores before a token is chosen: biases, penalties and bans."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from python_backend.engine.sequence.token_rules import Scoring, TokenRules

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from python_backend.engine.sequence import Sequence


def mask_of(bits: NDArray[np.uint32], vocabulary: int) -> NDArray[np.bool_]:
    """A truth value for each token that a guide has a bit for."""
    return np.unpackbits(bits.view(np.uint8), count=vocabulary, bitorder="little").view(np.bool_)


def adjusted_scores(scores: NDArray[np.float32], sequence: Sequence) -> NDArray[np.float32] | None:
    """The scores after bias, penalties and bans, in this order; None where the request changes nothing.

    Raises InflightError where the sequence's guide cannot go on.
    """
    request = sequence.request
    scoring = sequence.scoring_for(len(scores))
    rules = scoring.rules
    bans = _bans(sequence, rules)
    has_penalties = request.sampling.has_penalties
    if not (bans or has_penalties or len(rules.biased) or sequence.guide is not None):
        return None
    adjusted = scores.copy()
    if len(rules.biased):
        adjusted[rules.biased] += rules.biases
    if has_penalties:
        _penalize(adjusted, sequence, scoring)
    for token_ids in bans:
        adjusted[token_ids] = -math.inf
    if sequence.guide is not None:
        allowed = mask_of(sequence.guide.bits(request.end_id), len(adjusted))
        np.putmask(adjusted, ~allowed, -math.inf)
    return adjusted


def _penalize(scores: NDArray[np.float32], sequence: Sequence, scoring: Scoring) -> None:
    """Repetition weighs on prompt and answer, presence and frequency on the answer alone."""
    sampling = sequence.request.sampling
    if sampling.repetition_penalty != 1:
        seen, _ = scoring.all_counts.follow(sequence.tokens)
        penalty = np.float32(sampling.repetition_penalty)
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    if sequence.generated_tokens and (sampling.presence_penalty or sampling.frequency_penalty):
        ids, counts = scoring.answer_counts.follow(sequence.tokens)
        weight = sampling.presence_penalty + sampling.frequency_penalty * counts
        scores[ids] -= weight.astype(np.float32)


def _bans(sequence: Sequence, rules: TokenRules) -> list[NDArray[np.int64] | list[int]]:
    """Tokens that would complete a bad word, and those that would end the answer before `min_tokens`."""
    bans: list[NDArray[np.int64] | list[int]] = [rules.banned, rules.completing(sequence.tokens)]
    if not sequence.may_end:
        bans.append(rules.ends)
    return [token_ids for token_ids in bans if len(token_ids)]
