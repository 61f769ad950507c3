"""Where an answer stands in its guide's language, kept up to date beside the step loop."""

from __future__ import annotations

import time
from concurrent.futures import TimeoutError as WaitedTooLong
from concurrent.futures import wait
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from python_backend.engine.guides.limits import refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from python_backend.engine.guides.follower import Allowed, Finding, Follower, Position

# Behind others a search may wait for so many times what it may take itself.
_IN_LINE = 20


class GuideState:
    """One answer's position in its guide.

    `advance` tells the next token to the follower, which looks for what may come after it when it is next
    asked to `follow`, or when somebody asks here. `bits` waits for that: no longer than `step_s` from the
    moment at which the search began. One thread calls these methods.
    """

    def __init__(self, position: Position, follower: Follower) -> None:
        self._position = position
        self._follower = follower

    def advance(self, token_id: int) -> None:
        """Takes the next token of the answer; returns at once."""
        self._follower.tell(self._position, token_id)

    @property
    def is_ready(self) -> bool:
        """Whether `bits` would not wait: the tokens are found, or were not found in time."""
        return self._finding.is_done or self._left_s <= 0

    @property
    def may_end(self) -> bool:
        return self._wait().may_end

    def wait(self, limit_s: float) -> None:
        wait([self._finding.search.found], limit_s)

    def bits(self, end_id: int | None) -> NDArray[np.uint32]:
        """The tokens that may come next, `end_id` among them where the answer may end.

        InflightError where the answer cannot go on: its guide has grown too costly, or a token was none of
        those allowed.
        """
        allowed = self._wait()
        tokens = allowed.tokens
        if end_id is None or not 0 <= end_id < 32 * len(tokens):
            return tokens
        word, bit = end_id // 32, np.uint32(1 << end_id % 32)
        if bool(tokens[word] & bit) is not allowed.may_end:
            tokens = tokens.copy()
            tokens[word] ^= bit
        return tokens

    def fork(self) -> GuideState:
        """Another state at the same position, for another answer; waits for the search in progress."""
        self._wait()
        position = replace(self._position, matcher=self._position.matcher.deep_copy())
        return GuideState(position, self._follower)

    @property
    def _finding(self) -> Finding:
        if self._position.is_told:
            self._follower.follow()
        return self._position.finding

    @property
    def _left_s(self) -> float:
        search, step_s = self._finding.search, self._follower.limits.step_s
        if search.began_s is None:
            return search.asked_s + _IN_LINE * step_s - time.monotonic()
        return search.began_s + step_s - time.monotonic()

    def _wait(self) -> Allowed:
        while True:
            try:
                return self._finding.result(max(0.0, self._left_s))
            except WaitedTooLong:
                if self._left_s > 0:  # it began meanwhile
                    continue
                limit_s = self._follower.limits.step_s
                raise refusal(f"costs too much to follow; limit for one token {limit_s:g} s") from None
