"""Log probabilities on their way out: none for text that never leaves, none missing for text that does."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.pipeline import LoggedToken


class TokenLog:
    """The tokens of one answer, each held until the first character that it has a part in has left.

    A token that is the first half of a character waits with that character. One without text of its own
    leaves with the next that has some.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, LoggedToken]] = deque()
        self._ready: list[tuple[int, LoggedToken]] = []
        self._known = 0
        self._passed = 0

    def add(self, tokens: Sequence[LoggedToken]) -> None:
        for token in tokens:
            self._waiting.append((self._known, token))
            self._known += token.characters

    def let(self, characters: int, held: int = 0) -> None:
        """So many more characters may leave, but for the last `held` of all so far."""
        self._passed += characters
        while self._waiting and self._waiting[0][0] < self._passed - held:
            self._ready.append(self._waiting.popleft())

    def take(self) -> list[tuple[int, LoggedToken]]:
        """Those that have left since this was asked last, each with where its text begins."""
        ready, self._ready = self._ready, []
        return ready
