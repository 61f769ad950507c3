"""Ways to have replicas ready: each a forecast with the margin that it needs, and what it would have."""

from __future__ import annotations

from collections import deque
from math import ceil, exp
from typing import Generic, TypeVar

Number = TypeVar("Number", int, float)

# The margin moves by so much for each second of plans that are checked, however many they are, and stays
# within bounds. Below 1 it makes up for what else is counted on: the highest of several forecasts, and
# replicas that are kept for a while.
_MOVE_PER_S, _FIRST_MARGIN, _LEAST_MARGIN, _MOST_MARGIN = 0.002, 1.1, 0.8, 4.0
# After a pause of more nobody knows what was asked for meanwhile.
_LONGEST_S = 60.0


class Highest(Generic[Number]):
    """Of what it was told within so long; times never go back."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._falling: deque[tuple[float, Number]] = deque()

    def after(self, value: Number, now_s: float) -> Number:
        falling = self._falling
        while falling and falling[-1][1] <= value:
            falling.pop()
        falling.append((now_s, value))
        while falling[0][0] < now_s - self._within_s:
            falling.popleft()
        return falling[0][1]


class Margin:
    """What a forecast is multiplied by so that what was planned with it is enough `coverage` of the time.

    It is held against all that was planned in the end, not against the forecast alone: whatever is added on
    the way from one to the other is not paid for twice.
    """

    def __init__(self, coverage: float) -> None:
        self._coverage = coverage
        self._planned: deque[tuple[float, float]] = deque()
        self._checked_s: float | None = None
        self.value = _FIRST_MARGIN

    def plan(self, work: float, for_s: float) -> None:
        """So much can be done at that time; times never go back."""
        self._planned.append((for_s, work))

    def observe(self, demand: float, now_s: float) -> None:
        """Moves up fast where more is asked for than was planned for now, and down slowly otherwise."""
        while self._planned and self._planned[0][0] <= now_s:
            for_s, work = self._planned.popleft()
            passed_s = min(for_s - self._checked_s, _LONGEST_S) if self._checked_s is not None else 0.0
            self._checked_s = for_s
            move = _MOVE_PER_S * passed_s * (self._coverage if demand > work else self._coverage - 1.0)
            self.value = min(max(self.value * exp(move), _LEAST_MARGIN), _MOST_MARGIN)


class Course:
    """More replicas at once, fewer when none was wanted for `keep_s`: as if it alone were followed."""

    def __init__(self, coverage: float, start_s: float, keep_s: float) -> None:
        self._margin = Margin(coverage)
        self._start_s = start_s
        self._kept: Highest[int] = Highest(keep_s)

    def replicas(self, demand: float, ahead: float, least: float, work_of_one: float, now_s: float) -> int:
        """For what is foreseen, each with so much work; never fewer than `least`, nor than one."""
        self._margin.observe(demand, now_s)
        needed = ceil(max(self._margin.value * ahead / work_of_one, least) - 1e-9)
        kept = self._kept.after(max(needed, 1), now_s)
        self._margin.plan(kept * work_of_one, now_s + self._start_s)
        return kept
