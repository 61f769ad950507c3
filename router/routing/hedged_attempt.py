"""Two requests for one answer: whichever has the first token goes on, and the other one is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from router.triton.failures import TritonError

if TYPE_CHECKING:
    from router.triton.client import TritonGeneration


class HedgedAttempt:
    """Looks like the attempt that it begins with.

    After `late_s` without a token `open_rival` is asked for another one, and may decline. If the rival
    answers first, `won` is told before its first item is given; if it fails, only `lost` learns it. If the
    first one fails, that is what the reader learns, as without a rival.
    """

    def __init__(
        self,
        first: TritonGeneration,
        late_s: float,
        open_rival: Callable[[], TritonGeneration | None],
        won: Callable[[TritonGeneration], None],
        lost: Callable[[TritonError], None],
    ) -> None:
        self._current = first
        self._rival: TritonGeneration | None = None
        self._late_s = late_s
        self._open_rival = open_rival
        self._won = won
        self._lost = lost
        self._timer: asyncio.TimerHandle | None = None
        self._is_decided = False
        self._waits: dict[int, asyncio.Future[None]] = {}
        self._news: asyncio.Future[None] | None = None

    @property
    def on_end(self) -> Callable[[], None] | None:
        return self._current.on_end

    @on_end.setter
    def on_end(self, called: Callable[[], None] | None) -> None:
        self._current.on_end = called

    def take(self) -> Any:
        if self._is_decided:
            return self._current.take()
        try:
            item = self._current.take()
        except BaseException:
            self._decide()
            raise
        if item is None:
            item = self._take_of_rival()
        elif not self._is_decided:
            self._decide()
        return item

    def _take_of_rival(self) -> Any:
        rival = self._rival
        if rival is None:
            return None
        try:
            item = rival.take()
        except TritonError as error:
            self._rival = None
            rival.cut()
            self._lost(error)
            return None
        if item is not None:
            loser, self._current, self._rival = self._current, rival, None
            loser.on_end = None  # it counts no longer
            self._won(rival)
            loser.cut()
            self._decide()
        return item

    def more(self) -> asyncio.Future[None]:
        if self._is_decided and not self._waits:
            return self._current.more()
        loop = asyncio.get_running_loop()
        if self._timer is None and not self._is_decided:
            self._timer = loop.call_later(self._late_s, self._be_late)
        self._news = loop.create_future()
        self._wait_for(self._current)
        if self._rival is not None:
            self._wait_for(self._rival)
        return self._news

    def _wait_for(self, attempt: TritonGeneration) -> None:
        key = id(attempt)
        if key not in self._waits:
            waiting = self._waits[key] = attempt.more()
            waiting.add_done_callback(lambda _: self._hear(key))

    def _hear(self, key: int) -> None:
        self._waits.pop(key, None)
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _be_late(self) -> None:
        if not self._is_decided and self._rival is None:
            self._rival = self._open_rival()
            if self._rival is not None:
                self._rival.begin()  # at once: what was never begun would never end
                self._wake()

    def _decide(self) -> None:
        """From now on there is one attempt."""
        self._is_decided = True
        if self._timer is not None:
            self._timer.cancel()
        rival, self._rival = self._rival, None
        if rival is not None:
            rival.cut()

    def stop(self) -> None:
        self._decide()
        self._current.stop()

    def cut(self) -> None:
        self._decide()
        self._current.cut()

    def abandon(self) -> None:
        self._decide()
        self._current.abandon()
