"""How many guessed tokens pay: each is a row more in the step, and saves a step if it is right.

A step has one token for each sequence for certain. A sequence whose guesses come true with the chance `a`
gets a + a² + … more from them. What is maximised is tokens over time. So guesses stop by themselves where
rows are dear, as in large batches, and where they do not come true.

Rows are computed together, so a guess more may cost nothing, and the best number is looked for among all,
with the likeliest guesses first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

# On a CPU: rows that are computed together, and what one that is left over takes beside one of those.
_TOGETHER = 4
_ALONE = 2
# Where steps overlap otherwise: what one that does not takes more, at first sight, and the least size of one.
_FIRST_SHARE = 0.4
_LEAST_SIZE = 16
_LEARNS, _MOST_TIMES = 0.1, 3.0
# Chances and costs are estimates: among many that promise a little, those are chosen that promise too much.
_LEAST_GAIN = 1.05


@dataclass(frozen=True, slots=True)
class Guess:
    """So many tokens could be guessed for a sequence, and how likely the next one is right if those before
    it were."""

    tokens: int
    chance: float


@dataclass(frozen=True, slots=True)
class Step:
    """What is computed anyway: the tokens that it gives for certain, what it takes, and what guesses add."""

    tokens: int
    takes_ms: float
    extra_ms: Callable[[int], float]

    def with_guesses_ms(self, guesses: int) -> float:
        return self.takes_ms + (self.extra_ms(guesses) if guesses else 0.0)


class GuessCosts(Protocol):
    """What guesses add to a step, learned from those that had some."""

    def extra_ms(self, rows: int, takes_ms: float, guesses: int) -> float:
        """Beside so many rows, which take so long."""

    def observe(self, rows: int, takes_ms: float, guesses: int, more_ms: float) -> None:
        """They added that much."""


class RowCosts:
    """On a CPU a few rows are computed together; one that is left over takes about twice as long.

    Until that was seen, a guess is taken to cost as much as the rows that are there anyway. It is more than a
    row of a prompt: all words of the vocabulary are scored for it.
    """

    def __init__(self) -> None:
        self._row_ms: float | None = None

    def extra_ms(self, rows: int, takes_ms: float, guesses: int) -> float:
        return self._each_ms(rows, takes_ms) * (_weight(rows + guesses) - _weight(rows))

    def observe(self, rows: int, takes_ms: float, guesses: int, more_ms: float) -> None:
        if (weight := _weight(rows + guesses) - _weight(rows)) > 0:
            self._row_ms = _learned(self._each_ms(rows, takes_ms), more_ms / weight)

    def _each_ms(self, rows: int, takes_ms: float) -> float:
        return takes_ms / _weight(rows) if self._row_ms is None else self._row_ms


def _weight(rows: int) -> int:
    return rows // _TOGETHER * _TOGETHER + rows % _TOGETHER * _ALONE


def _learned(known_ms: float, seen_ms: float) -> float:
    """One step that something held up is not to end guesses for good: it would not be tried again."""
    seen_ms = min(max(0.0, seen_ms), _MOST_TIMES * known_ms + 0.1)
    return known_ms + _LEARNS * (seen_ms - known_ms)


class ApartCosts:
    """Where steps overlap: what those with guesses take more, which must not, by the size of their rows."""

    def __init__(self) -> None:
        self._more_ms: dict[int, float] = {}

    def extra_ms(self, rows: int, takes_ms: float, guesses: int) -> float:
        return self._more_ms.get(_size(rows + guesses), _FIRST_SHARE * takes_ms)

    def observe(self, rows: int, takes_ms: float, guesses: int, more_ms: float) -> None:
        known_ms = self.extra_ms(rows, takes_ms, guesses)
        self._more_ms[_size(rows + guesses)] = _learned(known_ms, more_ms)


def _size(rows: int) -> int:
    """Rows are filled up to the next power of two."""
    return max(_LEAST_SIZE, 1 << (rows - 1).bit_length())


def worthwhile(guesses: Sequence[Guess], step: Step, most_rows: int) -> list[int]:
    """How many of each to compute beside a step."""
    ahead = [(-guess.chance, index) for index, guess in enumerate(guesses) if guess.tokens > 0]
    heapq.heapify(ahead)
    left = [guess.tokens for guess in guesses]
    order: list[int] = []
    tokens, best, best_rate = float(step.tokens), 0, _LEAST_GAIN * step.tokens / step.takes_ms
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
