"""What the windowed layers of all sequences may come to need of the pool, at the same time.

A sequence never holds more than its window and what steps compute of it that are not over; all such steps
together have a bounded number of tokens. So what is promised to it when it joins is its window, and the rest
is set aside once for all. Blocks are taken as steps need them, and are there: whoever else holds one of them
has been promised it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True)
class Window:
    """Layers that look back at no more than so many `tokens`, the looking one included.

    They have `tables` groups, each with a table of blocks. `is_all`: no layer looks back further. Steps that
    run or are planned have `step_tokens` at most.
    """

    tokens: int
    tables: int = 1
    is_all: bool = True
    step_tokens: int = 0


class WindowClaims:
    """Counts stretches of as many tokens as a block has; each takes a block of every windowed table."""

    def __init__(self, window: Window | None, tokens_per_block: int) -> None:
        self.tables = window.tables if window else 0
        self._window_tokens = window.tokens if window else 0
        self._tokens_per_block = tokens_per_block
        # What a window touches at most, and one more that a chunk may touch beside its share of the step.
        self.most_of_one = (self._window_tokens - 2) // tokens_per_block + 3 if window else 0
        self._of_steps = window.step_tokens // tokens_per_block if window else 0
        self._claimed = 0
        self._room = 0

    def first_seen(self, computed_tokens: int) -> int:
        """The first stretch that a token looks back at which has so many before it."""
        if not self.tables:
            return 0
        return max(0, (computed_tokens + 1 - self._window_tokens) // self._tokens_per_block)

    def longest_seen(self, count: int, is_known: Callable[[int], bool]) -> int:
        """How many of the first stretches a sequence could begin with: what it then sees of them is known."""
        index = count - 1
        while index >= self.first_seen(count * self._tokens_per_block):
            if not is_known(index):
                count = index
            index -= 1
        return count

    def needed(self, before: int = 0, after: int = 0) -> int:
        """Blocks, if the room of one sequence changed from so many stretches to so many."""
        claimed = self._claimed + self._of_one(after) - self._of_one(before)
        return min(claimed + self._of_steps, self._room + after - before) * self.tables

    def change(self, before: int, after: int) -> None:
        self._claimed += self._of_one(after) - self._of_one(before)
        self._room += after - before

    def given_up(self, room: int) -> int:
        """At least so many blocks fewer are needed without a sequence that has this room."""
        return self._of_one(room) * self.tables

    def longest(self, blocks: int, per_stretch: int) -> int | None:
        """Stretches of one sequence that has all blocks, and takes `per_stretch` that it never gives back.

        None: there is no end.
        """
        most_held = self.most_of_one + self._of_steps
        short = blocks // (per_stretch + self.tables)
        if short < most_held:
            return short
        return (blocks - most_held * self.tables) // per_stretch if per_stretch else None

    def check(self, rooms: Iterable[int]) -> None:
        """Raises AssertionError unless all that is promised was promised to sequences with such rooms."""
        found = [(room, self._of_one(room)) for room in rooms]
        if (self._room, self._claimed) != (sum(each[0] for each in found), sum(each[1] for each in found)):
            raise AssertionError(f"{self._claimed} of {self._room} stretches are promised, to {found}")

    def most_sequences(self, blocks: int, stretches: int, per_stretch: int) -> int:
        """So long, each of which takes `per_stretch` blocks beside those of its window."""
        most = (blocks - self._of_steps * self.tables) // (
            stretches * per_stretch + self._of_one(stretches) * self.tables
        )
        return max(most, blocks // (stretches * (per_stretch + self.tables)))

    def _of_one(self, room: int) -> int:
        return min(room, self.most_of_one)
