"""One ModelStreamInfer: requests are read as they come and run side by side, answers share the way back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import ErrorKind, InflightError
from router.kserve.calls import Departure, Outbox, error_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import TypeAlias

    # Starts one request, whose answers go to the outbox; raises what is wrong with it.
    Start: TypeAlias = Callable[[Any, Outbox, Departure], asyncio.Task[None]]

_REQUESTS_AT_ONCE = 64
_OUTBOX_MESSAGES = 16
SEND_TIMEOUT_S = 30.0


class Stream:
    """Ends when the client has sent its last request and has every answer, or when it has left."""

    def __init__(self, start: Start, context: Any, send_timeout_s: float = SEND_TIMEOUT_S) -> None:
        self._start = start
        self._context = context
        self._send_timeout_s = send_timeout_s
        self._gave_up = False
        self._outbox = Outbox(_OUTBOX_MESSAGES)
        self._running: dict[asyncio.Task[None], Departure] = {}

    async def serve(self, requests: AsyncIterator[Any]) -> None:
        reading = asyncio.get_running_loop().create_task(self._read(requests))
        try:
            while (message := await self._outbox.get()) is not None:
                await self._send(message)
        finally:
            reading.cancel()
            self._outbox.close()
            for departure in list(self._running.values()):
                departure.leave()

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        try:
            async for request in requests:
                while len(self._running) >= _REQUESTS_AT_ONCE:
                    await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                try:
                    departure = Departure()
                    task = self._start(request, self._outbox, departure)
                except Exception as error:
                    await self._outbox.put(error_message(error, request.id))
                else:
                    self._running[task] = departure
                    task.add_done_callback(self._running.pop)
            if self._running:
                await asyncio.wait(self._running)
        finally:
            self._outbox.close()

    async def _send(self, message: Any) -> None:
        """A client that does not read for too long is taken for one that has left.

        Its end must have a status all the same: a call whose task was cancelled stays open for ever.
        """
        sending = asyncio.current_task()
        assert sending is not None
        deadline = asyncio.get_running_loop().call_later(self._send_timeout_s, self._give_up, sending)
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            if not self._gave_up:
                raise
            late = f"the client did not read for {self._send_timeout_s:g} s"
            raise InflightError(ErrorKind.CANCELLED, late) from None
        finally:
            deadline.cancel()

    def _give_up(self, sending: asyncio.Task[Any]) -> None:
        self._gave_up = True
        sending.cancel()

    def close_if_idle(self) -> None:
        if not self._running:
            self._outbox.close()
