"""How many guessed tokens pay: each is a row more in the step, and saves a step if it is right.

A step has one token for each sequence for certain. A sequence whose guesses come true with the chance `a`
gets a + a² + … more from them. What is maximised is tokens over time. So guesses stop by themselves where
rows are dear, as in large batches, and where they do not come true.

Rows are computed a few together; one that is left over takes about twice as long. So a guess more may cost
nothing, and the best number is looked for among all, with the likeliest guesses first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

# Rows that are computed together, and what one that is left over takes beside one of those.
_TOGETHER = 4
_ALONE = 2


@dataclass(frozen=True, slots=True)
class Guess:
    """So many tokens could be guessed for a sequence, and how likely the next one is right if those before
    it were."""

    tokens: int
    chance: float


@dataclass(frozen=True, slots=True)
class Step:
    """What is computed anyway: its rows, the tokens that it gives for certain, and what it takes.

    A row more takes `row_ms`, where rows are many.
    """

    rows: int
    tokens: int
    takes_ms: float
    row_ms: float

    def with_guesses_ms(self, guesses: int) -> float:
        return self.takes_ms + self.row_ms * (_weight(self.rows + guesses) - _weight(self.rows))


def _weight(rows: int) -> int:
    return rows // _TOGETHER * _TOGETHER + rows % _TOGETHER * _ALONE


def worthwhile(guesses: Sequence[Guess], step: Step, most_rows: int) -> list[int]:
    """How many of each to compute beside a step."""
    ahead = [(-guess.chance, index) for index, guess in enumerate(guesses) if guess.tokens > 0]
    heapq.heapify(ahead)
    left = [guess.tokens for guess in guesses]
    order: list[int] = []
    tokens, best, best_rate = float(step.tokens), 0, step.tokens / step.takes_ms
    while ahead and len(order) < most_rows:
        gain, index = -ahead[0][0], ahead[0][1]
        order.append(index)
        tokens += gain
        left[index] -= 1
        if left[index]:
            heapq.heapreplace(ahead, (-gain * guesses[index].chance, index))
        else:
            heapq.heappop(ahead)
        rate = tokens / step.with_guesses_ms(len(order))
        if rate > best_rate:
            best, best_rate = len(order), rate
    chosen = [0] * len(guesses)
    for index in order[:best]:
        chosen[index] += 1
    return chosen
