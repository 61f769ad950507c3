"""Where an answer stands in its guide's language, kept up to date beside the step loop."""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as WaitedTooLong
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from python_backend.engine.guides.limits import GuideLimits, refusal

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from llguidance import LLMatcher
    from numpy.typing import NDArray

    from python_backend.engine.guides.token_table import TokenTable


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which tokens may come next, a bit each, none of them special, and whether the answer may end here."""

    tokens: NDArray[np.uint32]
    may_end: bool


class GuideState:
    """One answer's position in its guide.

    The matcher belongs to whichever job is the latest: `advance` hands it to a thread, job after job in their
    order, and `mask` waits for the last of them, `step_s` at most from the moment it was handed over. One
    thread calls these methods.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        table: TokenTable,
        pool: ThreadPoolExecutor,
        limits: GuideLimits,
        allowed: Future[Allowed] | None = None,
    ) -> None:
        self._matcher = matcher
        self._table = table
        self._pool = pool
        self._limits = limits
        self._asked_s = time.monotonic()
        self._allowed = pool.submit(self._find_allowed) if allowed is None else allowed

    def advance(self, token_id: int) -> None:
        """Takes the next token of the answer; returns at once, and what it leads to is found in a thread."""
        self._asked_s = time.monotonic()
        self._allowed = self._pool.submit(self._consume, token_id, self._allowed)

    @property
    def is_ready(self) -> bool:
        """Whether `mask` would not wait: the tokens are found, or were not found in time."""
        return self._allowed.done() or self._left_s <= 0

    @property
    def may_end(self) -> bool:
        return self._wait().may_end

    def wait(self, limit_s: float) -> None:
        wait([self._allowed], limit_s)

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
        """Another state at the same position, for another answer; waits for the job in progress."""
        self._wait()
        return GuideState(self._matcher.deep_copy(), self._table, self._pool, self._limits, self._allowed)

    @property
    def _left_s(self) -> float:
        return self._asked_s + self._limits.step_s - time.monotonic()

    def _wait(self) -> Allowed:
        try:
            return self._allowed.result(max(0.0, self._left_s))
        except WaitedTooLong:
            limit_s = self._limits.step_s
            raise refusal(f"costs too much to follow; limit for one token {limit_s:g} s") from None

    def _consume(self, token_id: int, before: Future[Allowed]) -> Allowed:
        # Never waits long: jobs start in the order of their submission, so the one before has started.
        before.result()
        self._matcher.consume_token(token_id)
        return self._find_allowed()

    def _find_allowed(self) -> Allowed:
        bits = self._matcher.compute_bitmask()
        may_end = self._matcher.is_accepting()
        if self._matcher.is_error():
            raise refusal(f"cannot be followed any further: {self._matcher.get_error()}")
        return Allowed(self._table.allowed(bits), may_end)
