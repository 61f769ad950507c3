"""One request and the single answer to it."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import TypeAlias

    from router.http.upload import Upload

    Headers: TypeAlias = Iterable[tuple[str, str]]
    Refusal: TypeAlias = tuple[Headers, bytes]

REASONS = {status.value: status.phrase for status in HTTPStatus} | {
    499: "Client Closed Request",
    529: "Overloaded",
}


def render_head(status: int, headers: Headers) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    return f"HTTP/1.1 {status} {REASONS[status]}\r\n{''.join(lines)}\r\n".encode("latin-1")


class Request(msgspec.Struct, frozen=True):
    """What the client sent; header names are lower case, the path is percent-decoded, the query is not.

    A body that may be large comes as an upload instead of in memory.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    version: str = "1.1"
    keep_alive: bool = True
    query: str = ""
    upload: Upload | None = None


class Wire(Protocol):
    """The connection, as an exchange sees it."""

    def date(self) -> str:
        """The current time as a Date header."""

    def peer(self) -> str:
        """The address at the other end; empty where there is none."""

    def write(self, data: bytes) -> Awaitable[None]:
        """Queues bytes for the client, dropped once it is gone; to be awaited before there are more.

        That is over at once, or, when the client reads too slowly, once it has caught up or left.
        """

    def finished(self, exchange: Exchange) -> None:
        """The answer is complete: the next request may be handled."""


class Exchange:
    """Answers one request, whole with `respond` or in pieces with `start`, `send` and `end`.

    The client may leave at any time: then every further write is silently dropped, and `on_disconnect`
    callbacks have run.
    """

    __slots__ = (
        "_callbacks",
        "_chunked",
        "_head",
        "_patience_s",
        "_wire",
        "ended",
        "extra_headers",
        "gone",
        "keep_alive",
        "request",
        "started",
        "status",
    )

    def __init__(self, request: Request, wire: Wire) -> None:
        self.request = request
        self.status = 0
        self.started = False
        self.gone = False
        self.ended = False
        self.keep_alive = request.keep_alive
        self.extra_headers: Headers = ()  # of the answer, whatever it will be
        self._wire = wire
        self._head = b""
        self._chunked = False
        self._callbacks: list[Callable[[], None]] = []
        self._patience_s: Callable[[], float] | None = None

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Calls back once if the client leaves before the answer is complete; at once if it has left."""
        if self.gone:
            callback()
        else:
            self._callbacks.append(callback)

    def set_patience(self, patience_s: Callable[[], float]) -> None:
        """How long the client may leave the answer unread; asked whenever it stops reading."""
        self._patience_s = patience_s

    @property
    def peer(self) -> str:
        """The address that the request came from; empty for one from inside."""
        return self._wire.peer()

    @property
    def patience_s(self) -> float:
        return math.inf if self._patience_s is None else self._patience_s()

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        head = self._begin(status, [*headers, ("content-length", str(len(body)))])
        self._wire.write(head if self.request.method == "HEAD" else head + body)
        self._finish()

    def start(self, status: int, headers: Headers, length_bytes: int | None = None) -> None:
        """Begins an answer in pieces, of a known length or not; the head travels with the first piece."""
        if length_bytes is not None:
            headers = [*headers, ("content-length", str(length_bytes))]
        elif self.request.version == "1.1":
            self._chunked = True
            headers = [*headers, ("transfer-encoding", "chunked")]
        else:
            self.keep_alive = False
        self._head = self._begin(status, headers)

    def send(self, data: bytes) -> Awaitable[None]:
        """Writes one piece; what it returns is awaited while the client is slow to read."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        return self._wire.write(data)

    def fill_silence(self, data: bytes) -> None:
        """Writes what is no part of the answer."""
        self.send(data)

    def end(self, data: bytes = b"") -> None:
        if self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        self._wire.write(self._head + data)
        self._head = b""
        self._finish()

    def cut(self) -> None:
        """Ends an answer that cannot be completed, so that the client sees that it was cut off."""
        self.keep_alive = False
        self._finish()

    def client_left(self) -> None:
        """Told by the connection; runs the callbacks of an answer that was still in flight."""
        self.gone = True
        callbacks, self._callbacks = self._callbacks, []
        if not self.ended:
            for callback in callbacks:
                callback()

    def _begin(self, status: int, headers: Headers) -> bytes:
        """The head of the answer."""
        if self.started:
            raise RuntimeError(f"the answer to {self.request.path} has already begun")
        self.started = True
        self.status = status
        headers = [("date", self._wire.date()), *headers, *self.extra_headers]
        if not self.keep_alive:
            headers.append(("connection", "close"))
        elif self.request.version == "1.0":
            headers.append(("connection", "keep-alive"))
        return render_head(status, headers)

    def _finish(self) -> None:
        self.ended = True
        self._callbacks.clear()
        self._wire.finished(self)
