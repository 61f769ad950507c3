"""How much of a conversation's past a model is shown: a decision, made from sizes alone.

The past is cut into turns: a user's message with everything up to the next one. Whole turns are dropped, the
oldest first, until the rest fits; what is kept is therefore always the newest part, without a gap. Three
things are never dropped: system messages wherever they are, the new input, and a call whose result is new.
A call is never parted from its result: all turns from the one to the other count as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

_STAYS = 0  # the turn of what is kept whatever its turn


@dataclass(frozen=True, slots=True)
class Entry:
    """One item as the decision sees it; `makes` and `answers` are ids of calls."""

    role: str
    tokens: int
    is_new: bool = False
    makes: str | None = None
    answers: str | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The entries to show, by index. Where `fits` is false, nothing more can be dropped."""

    kept: tuple[int, ...]
    tokens: int
    fits: bool


def fit(entries: Sequence[Entry], room_tokens: int) -> Window:
    """As many of the newest turns as there is room for beside what must stay."""
    turns, newest = _turns(entries)
    sizes: Counter[int] = Counter()
    for entry, turn in zip(entries, turns, strict=True):
        sizes[turn] += entry.tokens
    tokens, first = sizes[_STAYS] + sizes[newest], newest
    while first > 1 and tokens + sizes[first - 1] <= room_tokens:
        first -= 1
        tokens += sizes[first]
    kept = tuple(index for index, turn in enumerate(turns) if turn == _STAYS or turn >= first)
    return Window(kept, tokens, tokens <= room_tokens)


def _turns(entries: Sequence[Entry]) -> tuple[list[int], int]:
    """The number of each entry's turn, from 1 on, and the number of the newest."""
    new = next((index for index, entry in enumerate(entries) if entry.is_new), len(entries))
    within_calls = _within_calls(entries)
    turns, turn = [], 0
    for index, entry in enumerate(entries):
        # All of the new input is one turn, however many messages it has.
        starts = index == new or (index < new and entry.role == "user")
        if turn == 0 or (starts and not within_calls[index]):
            turn += 1
        turns.append(_STAYS if entry.role == "system" else turn)
    return turns, turn


def _within_calls(entries: Sequence[Entry]) -> list[bool]:
    """For each place whether it is behind a call and not behind its result: no turn may begin there."""
    made: dict[str, int] = {}
    changes = [0] * (len(entries) + 1)
    for index, entry in enumerate(entries):
        if entry.makes is not None:
            made[entry.makes] = index
        if entry.answers is not None and entry.answers in made:
            changes[made[entry.answers] + 1] += 1
            changes[index + 1] -= 1
    return [depth > 0 for depth in accumulate(changes[:-1])]
