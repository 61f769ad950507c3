"""When an answer is asked for a second time because its first token is late, and how often at most.

Late is what nineteen of twenty recent first tokens of prompts of this length were not. A second request costs
the other replica something, so only a small share of all requests may have one.
"""

from __future__ import annotations

from collections import deque
from math import ceil

from router.routing.replay import RetryBudget

_KEPT = 200
_LEAST = 20
_QUANTILE = 0.95
_LEARN_EVERY = 10
# Not worth a second request.
_LEAST_LATE_S = 0.05


class FirstTokens:
    """Times to the first token of one release, by the length of the prompt."""

    def __init__(self) -> None:
        self._times_s: dict[int, deque[float]] = {}
        self._late_s: dict[int, float] = {}
        self._added = 0

    def add(self, prompt_tokens: int, took_s: float) -> None:
        times_s = self._times_s.setdefault(_size(prompt_tokens), deque(maxlen=_KEPT))
        times_s.append(took_s)
        self._added += 1
        if len(times_s) >= _LEAST and (self._added % _LEARN_EVERY == 0 or len(times_s) == _LEAST):
            ordered = sorted(times_s)
            late_s = ordered[min(ceil(_QUANTILE * len(ordered)), len(ordered) - 1)]
            self._late_s[_size(prompt_tokens)] = max(late_s, _LEAST_LATE_S)

    def late_s(self, prompt_tokens: int) -> float | None:
        """None while too few are known."""
        return self._late_s.get(_size(prompt_tokens))


class Hedges:
    """Of one release: `percent` of its requests may be asked twice, and a few more after a quiet time."""

    def __init__(self, percent: float) -> None:
        self._budget = RetryBudget(share=percent / 100, reserve=max(1.0, percent))
        self._first_tokens = FirstTokens()
        self.begun = 0  # second requests

    def requested(self) -> None:
        self._budget.requested()

    def late_s(self, prompt_tokens: int) -> float | None:
        return self._first_tokens.late_s(prompt_tokens)

    def take(self) -> bool:
        """Whether one more may be asked twice now."""
        if not self._budget.take():
            return False
        self.begun += 1
        return True

    def heard(self, prompt_tokens: int, took_s: float) -> None:
        self._first_tokens.add(prompt_tokens, took_s)


def _size(prompt_tokens: int) -> int:
    """Prompts of up to four times the length count as alike."""
    return prompt_tokens.bit_length() // 2
