"""What may come next after the tokens that answers were given, found beside the step loop.

Most guides take a fraction of a millisecond for a token. Those that are known for it are followed all
together, by threads that need no interpreter; the others one by one. A guide that turns out to be slow is
followed from then on by a thread of its own kind, which gives way to steps: answers under such guides wait
for each other, and nobody else waits for them.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from threading import get_native_id
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from llguidance import LLExecutor

from python_backend.engine.guides.limits import GuideLimits, refusal
from python_backend.host.priorities import give_way
from python_backend.wire.errors import InflightError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llguidance import LLMatcher
    from numpy.typing import NDArray

    from python_backend.engine.guides.token_table import TokenTable

Outcome = TypeVar("Outcome")

# A guide that took no longer than this so many times in a row is followed together with others.
_QUICK_S = 0.002
_PROVEN = 8
# A guide that has taken so much longer than this for each token is slow.
_MOST_DEBT_S = 0.05


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which tokens may come next, a bit each, none of them special, and whether the answer may end here."""

    tokens: NDArray[np.uint32]
    may_end: bool


class GuideCost:
    """What is known of all answers that follow one guide: how often in a row it was quick, and whether it is
    slow, which it stays."""

    __slots__ = ("_debt_s", "_quick", "is_high")

    def __init__(self) -> None:
        self._quick = 0
        self._debt_s = 0.0
        self.is_high = False

    @property
    def is_low(self) -> bool:
        return self._quick >= _PROVEN and not self.is_high

    def note(self, took_s: float) -> None:
        self._quick = self._quick + 1 if took_s <= _QUICK_S else 0
        self._debt_s = max(0.0, self._debt_s + took_s - _QUICK_S)
        self.is_high = self.is_high or self._debt_s > _MOST_DEBT_S

    def doubt(self) -> None:
        self._quick = 0


class Search:
    """One job for one or more answers; who waits for it need not wait for those before it."""

    __slots__ = ("asked_s", "began_s", "found")

    def __init__(self) -> None:
        self.asked_s = time.monotonic()
        self.began_s: float | None = None
        self.found: Future[list[Allowed | InflightError]] = Future()


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer's part of a search."""

    search: Search
    index: int = 0

    @property
    def is_done(self) -> bool:
        return self.search.found.done()

    def result(self, limit_s: float | None = None) -> Allowed:
        """Raises InflightError where the answer cannot go on, and TimeoutError after `limit_s`."""
        found = self.search.found.result(limit_s)[self.index]
        if isinstance(found, InflightError):
            raise found
        return found


@dataclass(slots=True, eq=False)
class Position:
    """Where one answer stands. The matcher belongs to whichever search is the latest.

    One that `is_told` was given a token that is not followed yet: its finding is of the one before.
    """

    matcher: LLMatcher
    table: TokenTable
    cost: GuideCost
    finding: Finding
    is_told: bool = False


class Follower:
    """One thread tells it tokens and lets it `follow`; `begin` is for any."""

    def __init__(self, limits: GuideLimits) -> None:
        self.limits = limits
        self._threads = ThreadPoolExecutor(limits.following_threads, "guide-follow")
        self._slow = ThreadPoolExecutor(1, "guide-follow-slow", lambda: give_way(get_native_id()))
        self._told: list[tuple[Position, int]] = []

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._slow.shutdown(wait=True, cancel_futures=True)

    def submit(self, task: Callable[[], Outcome]) -> Future[Outcome]:
        """Something else that is to be done beside the step loop, and as soon."""
        return self._threads.submit(task)

    def begin(self, matcher: LLMatcher, table: TokenTable) -> Position:
        """The beginning of an answer; what may come first is being looked for."""
        position = Position(matcher, table, GuideCost(), Finding(Search()))
        self._threads.submit(self._find_one, position, None, None, position.finding.search)
        return position

    def tell(self, position: Position, token_id: int) -> None:
        """The next token of an answer, which is followed with the others that are told meanwhile."""
        if position.is_told:
            self.follow()
        position.is_told = True
        self._told.append((position, token_id))

    def follow(self) -> None:
        """Begins to look for what may come after the tokens that were told; returns at once."""
        told, self._told = self._told, []
        together: list[tuple[Position, int]] = []
        alone: list[tuple[Position, int]] = []
        for each in told:
            each[0].is_told = False
            (together if each[0].cost.is_low and each[0].finding.is_done else alone).append(each)
        if len(together) == 1:
            alone.append(together.pop())
        for position, token_id in alone:
            before, position.finding = position.finding, Finding(Search())
            threads = self._slow if position.cost.is_high else self._threads
            threads.submit(self._find_one, position, token_id, before, position.finding.search)
        if together:
            search = Search()
            for index, (position, _) in enumerate(together):
                position.finding = Finding(search, index)
            self._threads.submit(self._find_all, together, search)

    @cached_property
    def _executor(self) -> LLExecutor:
        return LLExecutor(self.limits.following_threads)

    def _find_one(
        self, position: Position, token_id: int | None, before: Finding | None, search: Search
    ) -> None:
        try:
            if before is not None:
                # Never waits long: jobs start in the order of their submission, so the one before has; only
                # one that has just become slow changes its threads.
                before.search.found.exception()
            search.began_s = time.monotonic()
            began_s = time.thread_time()
            if token_id is not None:
                position.matcher.consume_token(token_id)
            bits = np.frombuffer(position.matcher.compute_bitmask(), "<u4")
            found = _outcome(position.matcher, position.table.allowed(bits))
            position.cost.note(time.thread_time() - began_s)
        except BaseException as error:
            search.found.set_exception(error)
        else:
            search.found.set_result([found])

    def _find_all(self, told: Sequence[tuple[Position, int]], search: Search) -> None:
        try:
            search.began_s = time.monotonic()
            table = told[0][0].table
            self._executor.consume_token_par([(position.matcher, token_id) for position, token_id in told])
            masks = np.zeros((len(told), table.mask_words), "<u4")
            self._executor.unsafe_compute_mask_ptr(
                [(position.matcher, index) for index, (position, _) in enumerate(told)],
                masks.ctypes.data,
                masks.strides[0],
                len(told),
            )
            rows = table.allowed(masks)
            found = [_outcome(position.matcher, row) for (position, _), row in zip(told, rows, strict=True)]
            expected_s = _QUICK_S * (1 + len(told) / self.limits.following_threads)
            if time.monotonic() - search.began_s > 2 * expected_s:
                for position, _ in told:
                    position.cost.doubt()
        except BaseException as error:
            search.found.set_exception(error)
        else:
            search.found.set_result(found)


def _outcome(matcher: LLMatcher, tokens: NDArray[np.uint32]) -> Allowed | InflightError:
    may_end = matcher.is_accepting()
    if matcher.is_error():
        return refusal(f"cannot be followed any further: {matcher.get_error()}")
    return Allowed(tokens, may_end)
