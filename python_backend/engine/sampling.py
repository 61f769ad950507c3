"""Choosing each sequence's next token from its logits.

Whatever else is in the batch, a sequence draws exactly one number from its own generator for each token it
samples, so that a seed gives the same answer alone, in company and after a preemption.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence as Row

    from python_backend.engine.sequence import Sequence

# Sorting a whole vocabulary costs milliseconds a row; the likeliest few nearly always hold the answer.
_CANDIDATES = 128


def choose_tokens(logits: torch.Tensor, sequences: Row[Sequence]) -> list[int | None]:
    """The next token of each row; None where the logits are not numbers. Overwrites `logits`."""
    if not sequences:
        return []
    _forbid_early_end(logits, sequences)
    for row, sequence in enumerate(sequences):
        if sequence.request.sampling.has_penalties:
            penalize_(logits[row], sequence)
    best, best_ids = logits.max(dim=1)
    is_sound = best.isfinite().tolist()
    chosen: list[int | None] = [
        token_id if sound else None for token_id, sound in zip(best_ids.tolist(), is_sound, strict=True)
    ]
    by_chance = [
        row
        for row, sequence in enumerate(sequences)
        if is_sound[row] and not sequence.request.sampling.is_greedy
    ]
    if by_chance:
        drawn = _draw(logits[by_chance], best[by_chance], [sequences[row] for row in by_chance])
        for row, token_id in zip(by_chance, drawn, strict=True):
            chosen[row] = token_id
    return chosen


def _forbid_early_end(logits: torch.Tensor, sequences: Row[Sequence]) -> None:
    early = [
        (row, end_id)
        for row, sequence in enumerate(sequences)
        if not sequence.may_end
        for end_id in sequence.request.single_ends
        if 0 <= end_id < logits.shape[1]
    ]
    if early:
        rows, end_ids = zip(*early, strict=True)
        logits[torch.tensor(rows), torch.tensor(end_ids)] = -math.inf


def penalize_(logits: torch.Tensor, sequence: Sequence) -> None:
    """Repetition weighs on prompt and answer, presence and frequency on the answer alone."""
    sampling = sequence.request.sampling
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sequence.tokens)
        scores = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(scores > 0, scores / penalty, scores * penalty)
    generated = torch.tensor(sequence.generated_ids, dtype=torch.long)
    if sampling.presence_penalty != 0:
        logits[generated] = logits[generated] - sampling.presence_penalty
    if sampling.frequency_penalty != 0:
        logits.index_add_(0, generated, torch.ones(len(generated)), alpha=-sampling.frequency_penalty)


def _draw(logits: torch.Tensor, best: torch.Tensor, sequences: Row[Sequence]) -> list[int]:
    """One token for each row, found among a few candidates if they suffice, else among all."""
    vocabulary = logits.shape[1]
    settings = [sequence.request.sampling for sequence in sequences]
    temperatures = torch.tensor([sampling.temperature for sampling in settings])
    scaled = logits.sub_(best[:, None]).div_(temperatures[:, None])
    top_k = torch.tensor([min(sampling.top_k or vocabulary, vocabulary) for sampling in settings])
    top_p = torch.tensor([sampling.top_p if sampling.top_p > 0 else 1.0 for sampling in settings])
    chance = torch.tensor([sequence.random.random() for sequence in sequences])
    drawn = draw_among(min(_CANDIDATES, vocabulary), scaled, top_k, top_p, chance)
    missed = (drawn < 0).nonzero().view(-1)
    if len(missed):
        drawn[missed] = draw_among(vocabulary, scaled[missed], top_k[missed], top_p[missed], chance[missed])
    token_ids: list[int] = drawn.tolist()
    return token_ids


def draw_among(
    width: int, scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, chance: torch.Tensor
) -> torch.Tensor:
    """Draws from the `width` likeliest tokens of each row; -1 where those do not suffice to tell.

    A row keeps its `top_k` likeliest tokens and of those the fewest whose shares reach `top_p`. The shares
    kept are piled up, likeliest at the bottom, and `chance` picks a point on the pile. `scaled` holds the
    logits less their row's maximum, over the temperature.
    """
    values, token_ids = scaled.topk(width, dim=1)
    weights = values.exp() * (torch.arange(width) < top_k[:, None])
    has_all_kept = top_k <= width
    whole = weights.sum(1)
    if not has_all_kept.all():
        whole = torch.where(has_all_kept, whole, scaled.exp().sum(1))
    pile = (weights / whole[:, None]).cumsum(1)
    reaches = pile >= top_p[:, None]
    has_end = reaches.any(1) | has_all_kept
    last = torch.where(reaches.any(1), reaches.int().argmax(1), top_k.clamp(max=width) - 1)
    height = torch.where(has_end, pile.gather(1, last[:, None])[:, 0], 1.0)
    index = (pile <= (chance * height)[:, None]).sum(1)
    # A top_k wider than the candidates leaves the shares unknown; an open pile tells what lies within it.
    keeps_everything = top_k == scaled.shape[1]
    lies_within = (top_p >= 1) & (index < width)
    tells = has_all_kept | (keeps_everything & (reaches.any(1) | lies_within))
    index = torch.where(has_end, torch.minimum(index, last), index.clamp(max=width - 1))
    return torch.where(tells, token_ids.gather(1, index[:, None])[:, 0], -1)
