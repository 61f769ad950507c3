"""What the router does at the moment, as one value that all who look are shown."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from router.telemetry.overview.looks import Look, take_look

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.telemetry.overview.snapshots import Snapshots

log = logging.getLogger(__name__)

PERIOD_S = 1.0
_UNWATCHED_PERIOD_S = 5.0
# Rates and percentiles are over so long: over a second they would jump.
_WINDOW_S = 10.0
_HISTORY_S = 300.0


class Overview:
    """Looked at once a second while somebody watches, else less often; each look is encoded once for all."""

    def __init__(self, snapshots: Snapshots, clock: Callable[[], float] = time.monotonic) -> None:
        self._snapshots = snapshots
        self._clock = clock
        self._began_s = clock()
        self._looks: deque[Look] = deque([take_look(snapshots.metrics, clock())])
        self._history: deque[dict[str, Any]] = deque()
        self._next: asyncio.Future[bytes] | None = None
        self._woken = asyncio.Event()
        self.watchers = 0

    async def run(self) -> None:
        """For as long as the router runs."""
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            due = loop.call_later(PERIOD_S if self.watchers else _UNWATCHED_PERIOD_S, self._woken.set)
            await self._woken.wait()
            due.cancel()
            try:
                self.look()
            except Exception:
                log.exception("the state of the router could not be collected")

    def look(self) -> None:
        """Takes one, and hands it to those who wait for it."""
        now = take_look(self._snapshots.metrics, self._clock())
        self._looks.append(now)
        while len(self._looks) > 2 and now.at_s - self._looks[1].at_s >= _WINDOW_S:
            self._looks.popleft()
        shown = self._shown(now)
        self._history.append(_point(shown))
        while shown["at_s"] - self._history[0]["at_s"] > _HISTORY_S:
            self._history.popleft()
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(msgspec.json.encode(shown))

    async def next(self) -> bytes:
        """The next look as JSON, the same bytes for all."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._next)

    def watch(self) -> None:
        """One more watches: where nobody did, the next look is now."""
        if not self.watchers:
            self._woken.set()
        self.watchers += 1

    def unwatch(self) -> None:
        self.watchers -= 1

    def now(self) -> dict[str, Any]:
        """With what was before."""
        new = take_look(self._snapshots.metrics, self._clock())
        return {**self._shown(new), "history": list(self._history)}

    def _shown(self, new: Look) -> dict[str, Any]:
        shown = self._snapshots.between(self._looks[0], new)
        shown["router"] |= {"up_s": round(new.at_s - self._began_s), "watchers": self.watchers}
        return shown


def _point(shown: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a look, for the plots of who comes later."""
    releases = [each for model in shown["models"] for each in model["releases"]]

    def most(name: str) -> float | None:
        return max((each[name] for each in releases if each[name] is not None), default=None)

    return {
        "at_s": shown["at_s"],
        "in_flight": sum(each["in_flight"] for each in releases),
        "waiting": sum(sum(each["waiting"].values()) for each in releases),
        "requests_per_s": round(sum(each["requests_per_s"] for each in releases), 3),
        "tokens_per_s": round(sum(each["tokens_per_s"] for each in releases), 2),
        "first_token_p95_s": most("first_token_p95_s"),
        "inter_token_p95_s": most("inter_token_p95_s"),
    }
