"""Calls to one gRPC server, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from router.grpc.call import Call
from router.grpc.connection import Connection
from router.grpc.sender import RequestHeaders
from router.grpc.status import GrpcError, StatusCode
from router.grpc.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.grpc.target import ClientTls

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
_CONNECT_TIMEOUT_S = 5.0
_SHORTEST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0
_MAX_CONNECTIONS = 64
_MAX_ATTEMPTS = 3


def next_pause_s(pause_s: float) -> float:
    """How long to wait after one more connection that could not be made."""
    return min(max(2 * pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)


class Channel:
    """Connects when there is something to call, and again when the server was away.

    A call begins at once where a connection has room. Otherwise it waits for the one being made, and fails
    with UNAVAILABLE when that one cannot be made, or at once where the last attempt was a moment ago.
    """

    def __init__(
        self,
        target: str,
        metadata: Mapping[str, str] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: ClientTls | None = None,
    ) -> None:
        self._target = Target(target, tls)
        self._headers = RequestHeaders(self._target.authority, metadata, self._target.is_encrypted)
        self._max_message_bytes = max_message_bytes
        self._connections: list[Connection] = []
        self._waiting: list[Call] = []
        self._connecting: asyncio.Task[None] | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._pause_s = 0.0
        self._paused_until_s = 0.0
        self._why = ""
        self._closed = False

    def call(
        self,
        method: str,
        request: bytes,
        timeout_s: float | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> Call:
        """Sends one request; the answer's messages are read off the call, which may have ended by then."""
        call = Call(method, request, self._max_message_bytes, on_end)
        if timeout_s is not None:
            call.set_deadline(timeout_s)
        self._dispatch(call)
        return call

    async def call_once(self, method: str, request: bytes, timeout_s: float | None = None) -> bytes:
        """A call with one message for an answer."""
        call = self.call(method, request, timeout_s)
        try:
            message = await call.read()
            if message is None or await call.read() is not None:
                raise GrpcError(StatusCode.INTERNAL, "the server did not answer with exactly one message")
        finally:
            call.cancel()
        return message

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._fail_waiting(GrpcError(StatusCode.CANCELLED, "the channel was closed"))
        for connection in list(self._connections):
            connection.close()
        # The transports close in the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)

    # The connections

    def _dispatch(self, call: Call) -> None:
        for connection in self._connections:
            if connection.begin(call):
                return
        if self._closed:
            call.end(GrpcError(StatusCode.CANCELLED, "the channel is closed"))
        elif self._connecting is None and not self._usable and self._pause_left_s > 0:
            call.end(GrpcError(StatusCode.UNAVAILABLE, self._why, lost=True, sent=False))
        else:
            self._waiting.append(call)
            self._connect()

    @property
    def _usable(self) -> bool:
        """Whether a place may become free on a connection that is there."""
        return any(not connection.leaving for connection in self._connections)

    @property
    def _pause_left_s(self) -> float:
        return self._paused_until_s - asyncio.get_running_loop().time()

    def _connect(self) -> None:
        full = len(self._connections) >= _MAX_CONNECTIONS or self._pause_left_s > 0
        if self._connecting is None and not full:
            self._connecting = asyncio.get_running_loop().create_task(self._try_to_connect())

    async def _try_to_connect(self) -> None:
        connection = Connection(self, self._headers)
        try:
            await asyncio.wait_for(self._arrive(connection), _CONNECT_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError) as error:
            self._connecting = None
            self._failed(str(error) or "no answer")
        else:
            self._connecting = None
            if connection.has_room:
                self._pause_s = 0.0
                self._dispatch_waiting()
            else:
                self._failed("the server accepts no calls")

    async def _arrive(self, connection: Connection) -> None:
        """Returns once the server has greeted us: one that only accepts is not there yet."""
        loop = asyncio.get_running_loop()
        self._arrival = loop.create_future()
        transport = await self._target.connect(lambda: connection)
        try:
            await self._arrival
        except BaseException:
            transport.abort()
            raise

    def _failed(self, why: str) -> None:
        self._pause_s = next_pause_s(self._pause_s)
        # Routers that lost the same server must not come back all at once.
        jitter = random.uniform(0.8, 1.2)
        self._paused_until_s = asyncio.get_running_loop().time() + self._pause_s * jitter
        self._why = f"no connection to {self._target.url}: {why}"
        if not self._usable:
            self._fail_waiting(GrpcError(StatusCode.UNAVAILABLE, self._why, lost=True, sent=False))

    def _fail_waiting(self, error: GrpcError) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.end(error)

    def _dispatch_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if not call.ended:
                self._dispatch(call)

    # What connections tell

    def ready(self, connection: Connection) -> None:
        self._connections.append(connection)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def changed(self, connection: Connection) -> None:
        idle = connection.open_calls == 0
        if idle and (connection.leaving or len(self._connections) > 1):
            connection.close()
        if self._waiting:
            self._dispatch_waiting()

    def lost(self, connection: Connection, reason: str) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
        elif self._arrival is not None and not self._arrival.done():
            self._arrival.set_exception(ConnectionError(reason))
        if self._waiting and self._connecting is None:
            self._dispatch_waiting()

    def refused(self, call: Call) -> None:
        if not call.closed_unseen() or call.attempts >= _MAX_ATTEMPTS:
            call.end(GrpcError(StatusCode.UNAVAILABLE, "the server refused the stream", lost=True))
        else:
            self._dispatch(call)
