"""The events of responses that are made in the background, for readers who come late or come back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from python_backend.wire.errors import InflightError
from router.request.decoding import invalid

_EVENT_END = b"\n\n"
_COMMENT = b":"
# What an event takes in memory beside its bytes.
_EVENT_BYTES = 100


class EventSink(Protocol):
    """Where the events of one response go."""

    def add(self, events: bytes) -> None:
        """One or several, whole; comments are none. Nobody waits for it."""

    def close(self) -> None:
        """No more will come; those there are stay for a while."""


class EventLog(Protocol):
    """Events are numbered from 0, as their `sequence_number` says. A stream of Redis could be one."""

    def open(self, tenant: str, response_id: str) -> EventSink:
        """For a new response."""

    def follow(self, response_id: str, after: int) -> AsyncIterator[bytes]:
        """Those behind a number, and those to come, to the last. Raises where they are no longer kept."""

    def forget(self, response_id: str) -> None:
        """They are deleted with their response."""


@dataclass(frozen=True, slots=True)
class LogLimits:
    """`kept_s`: for so long after the last one; less where there is no room for others'."""

    bytes_per_tenant: int = 16 << 20
    bytes_in_all: int = 256 << 20
    kept_s: float = 600.0


@dataclass(slots=True, eq=False)
class _Kept:
    tenant: str
    response_id: str
    log: MemoryEventLog
    events: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    ended_s: float | None = None
    is_dropped: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, events: bytes) -> None:
        parts = events.split(_EVENT_END)
        whole = [part + _EVENT_END for part in parts if part and not part.startswith(_COMMENT)]
        if not self.is_dropped and self.log.make_room(self, sum(map(len, whole)) + _EVENT_BYTES * len(whole)):
            self.events += whole
            self.wake()

    def close(self) -> None:
        self.ended_s = self.log.clock()
        self.wake()

    def drop(self) -> None:
        self.is_dropped, self.events = True, []
        self.wake()

    def wake(self) -> None:
        """Whoever waits, and nobody who comes later."""
        self.changed.set()
        self.changed = asyncio.Event()


class MemoryEventLog:
    """In this process, the oldest first; what does not fit goes with all of its response's events."""

    def __init__(self, limits: LogLimits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._limits = limits or LogLimits()
        self._kept: dict[str, _Kept] = {}
        self._held: Counter[str] = Counter()  # bytes, by tenant
        self._held_in_all = 0

    def open(self, tenant: str, response_id: str) -> EventSink:
        expired_s = self.clock() - self._limits.kept_s
        for each in [*self._kept.values()]:
            if each.ended_s is not None and each.ended_s < expired_s:
                self.forget(each.response_id)
        kept = self._kept[response_id] = _Kept(tenant, response_id, self)
        return kept

    def follow(self, response_id: str, after: int) -> AsyncIterator[bytes]:
        kept = self._kept.get(response_id)
        if kept is None or kept.is_dropped:
            raise _gone()
        return _follow(kept, after + 1)

    def forget(self, response_id: str) -> None:
        kept = self._kept.pop(response_id, None)
        if kept is not None:
            self._drop(kept)

    def make_room(self, kept: _Kept, more_bytes: int) -> bool:
        """Whether there is room for so many more of one response: others that have ended go for it."""
        limits, tenant = self._limits, kept.tenant
        while (
            is_own := self._held[tenant] + more_bytes > limits.bytes_per_tenant
        ) or self._held_in_all + more_bytes > limits.bytes_in_all:
            ended = (each for each in self._kept.values() if each.ended_s is not None and each.size_bytes)
            oldest = next((each for each in ended if not is_own or each.tenant == tenant), None)
            if oldest is None:
                self._drop(kept)
                return False
            self.forget(oldest.response_id)
        self._hold(kept, more_bytes)
        return True

    def _drop(self, kept: _Kept) -> None:
        self._hold(kept, -kept.size_bytes)
        kept.drop()

    def _hold(self, kept: _Kept, more_bytes: int) -> None:
        kept.size_bytes += more_bytes
        self._held_in_all += more_bytes
        self._held[kept.tenant] += more_bytes
        if not self._held[kept.tenant]:
            del self._held[kept.tenant]


async def _follow(kept: _Kept, at: int) -> AsyncIterator[bytes]:
    while not kept.is_dropped:
        if at < len(kept.events):
            some, at = kept.events[at:], len(kept.events)
            yield b"".join(some)
        elif kept.ended_s is not None:
            return
        else:
            await kept.changed.wait()
    raise _gone()


def _gone() -> InflightError:
    return invalid(
        "the events of this response are not kept here (any more); read it without stream", "stream"
    )
