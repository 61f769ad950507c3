"""Accepts connections, runs the handler of each request, and closes down in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from router.http.body_shares import BodyShares, BodyTerms
from router.http.connection import Connection, Limits
from router.http.tls import HANDSHAKE_TIMEOUT_S

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

    from router.http.exchange import Exchange, Refusal

log = logging.getLogger(__name__)

_SWEEP_S = 1.0
_FLUSH_S = 1.0
# Bounds what the kernel holds for a client that does not read; it doubles the figure for its own use.
_SEND_BUFFER_BYTES = 64 << 10


class Listener:
    """A listening socket, its connections and the tasks that answer them."""

    def __init__(
        self,
        handler: Callable[[Exchange], Coroutine[Any, Any, object]],
        refuse: Callable[[int, str, str, dict[str, str]], Refusal],
        limits: Limits | None = None,
        sweep_s: float = _SWEEP_S,
        body_terms: Callable[[str, str, dict[str, str]], BodyTerms] = lambda *_: BodyTerms(""),
    ) -> None:
        self.limits = limits or Limits()
        self.refuse = refuse
        self.body_terms = body_terms
        self.upload_slots = BodyShares(self.limits.max_uploads)
        # Where bodies may be large, several of one tenant still fit.
        self.memory = BodyShares(max(self.limits.max_arriving_bytes, 8 * self.limits.max_body_bytes))
        self.handler = handler
        self._sweep_s = sweep_s
        self._connections: set[Connection] = set()
        self._unsent: list[Connection] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self.tasks: set[asyncio.Task[object]] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.date = formatdate(usegmt=True)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Begins to accept; returns the port, which the system chooses when 0 is asked for."""
        listening = _bind(host, port)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self),
            sock=listening,
            backlog=2048,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_TIMEOUT_S,
        )
        self._sweep()
        bound: int = listening.getsockname()[1]
        return bound

    async def close(self, grace_s: float = 5.0) -> None:
        """Stops accepting, lets answers in flight end, then cuts whatever is left."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close_when_idle()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=grace_s)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout=_FLUSH_S)
        for connection in list(self._connections):
            connection.abort()
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_FLUSH_S)
        if self._sweeper is not None:
            self._sweeper.cancel()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._empty.clear()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def written(self, connection: Connection) -> None:
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(connection)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            connection.flush()

    def handled(self, exchange: Exchange, task: asyncio.Task[object]) -> None:
        """Not a coroutine around the handler: that would run once more for every token."""
        self.tasks.discard(task)
        if exchange.request.upload is not None:
            exchange.request.upload.close()
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("the handler of a %s failed", exchange.request.method, exc_info=error)
        if not exchange.started:
            request = exchange.request
            headers, body = self.refuse(500, "the server failed to answer", request.path, request.headers)
            exchange.keep_alive = False
            exchange.respond(500, body, headers)
        elif not exchange.ended:
            exchange.keep_alive = False
            exchange.end()

    def _sweep(self) -> None:
        self.date = formatdate(usegmt=True)
        now_s = time.monotonic()
        for connection in list(self._connections):
            connection.check_deadlines(now_s)
        self._sweeper = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listening.bind((host, port))
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
