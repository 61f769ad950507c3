"""What the engine told of an answer: noted, so that another router can tell the same again and go on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from python_backend.wire.errors import InflightError
from router.core.generation import Delta

if TYPE_CHECKING:
    from router.core.generation import Generation, GenerationCall, Pipeline
    from router.resume.event_log import Claimed, EventSink

# So often an answer that fails is begun, wherever.
MOST_TAKES = 4
_Noted = list[tuple[int, Delta]]
_encode = msgspec.msgpack.Encoder().encode
_noted = msgspec.msgpack.Decoder(_Noted)


class Retelling:
    """Of all choices of one request. What was told before comes first, in the order in which it did."""

    judges = False

    def __init__(self, claimed: Claimed, sink: EventSink) -> None:
        self._sink = sink
        self._take = claimed.take
        self._told: deque[tuple[int, Delta]] = deque()
        for basis in filter(None, claimed.bases):
            self._told += _noted.decode(basis)
        self._all_told = tuple(self._told)
        self._news: _Noted = []
        self._next = asyncio.Event()
        self.has_begun = bool(claimed.told)  # here or before

    def generate(self, pipeline: Pipeline, index: int, call: GenerationCall) -> Generation:
        if self._take > 1:  # what the last router began may still be under way
            call = msgspec.structs.replace(call, request_id=f"{call.request_id}-t{self._take}")
        told = [delta for choice, delta in self._all_told if choice == index]
        return RetoldGeneration(self, index, told, pipeline.generate(call, told))

    def goes_on_elsewhere(self, error: BaseException | None) -> bool:
        if self._sink.is_taken:
            return True
        is_ours = isinstance(error, InflightError) and error.kind.http_status >= 500
        return is_ours and self.has_begun and self._sink.is_shared and self._take < MOST_TAKES

    async def judge(self, prompts: Sequence[str], texts: Sequence[str]) -> None: ...

    def take_news(self) -> bytes:
        """What was noted since this was asked last."""
        if not self._news:
            return b""
        news, self._news = self._news, []
        return _encode(news)

    def note(self, index: int, delta: Delta) -> None:
        self._news.append((index, delta))

    def skip(self, index: int) -> None:
        """Nobody wants the rest of this choice: the others need not wait for it."""
        self._told = deque(each for each in self._told if each[0] != index)
        self._wake()

    def _wake(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def again(self, index: int) -> Delta | None:
        """What this choice was told next; None once all of all choices is told again."""
        while self._told:
            if self._told[0][0] == index:
                delta = self._told.popleft()[1]
                self._wake()
                return delta
            await self._next.wait()
        return None


class RetoldGeneration:
    """One choice: what it was told before, then what is new."""

    def __init__(self, retelling: Retelling, index: int, told: Sequence[Delta], rest: Generation) -> None:
        self._retelling = retelling
        self._index = index
        self._left = len(told)
        self._is_over = False
        self._rest = rest
        self._deltas = aiter(rest)

    @property
    def lost_attempts(self) -> int:
        return getattr(self._rest, "lost_attempts", 0)

    def stop(self) -> None:
        self._retelling.skip(self._index)
        self._rest.stop()

    def __aiter__(self) -> RetoldGeneration:
        return self

    async def __anext__(self) -> Delta:
        if self._is_over:
            raise StopAsyncIteration
        if self._left and (delta := await self._retelling.again(self._index)) is not None:
            self._left -= 1
            self._is_over = delta.finish is not None
            return delta
        await self._retelling.again(-1)  # until the other choices are that far too
        delta = await anext(self._deltas)
        self._retelling.note(self._index, delta)
        return delta
