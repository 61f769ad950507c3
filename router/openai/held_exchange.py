"""An answer whose end waits until it is stored: whoever has read that can build on it at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from router.http.exchange import Exchange

if TYPE_CHECKING:
    from router.http.exchange import Headers


class HeldExchange(Exchange):
    """Passes on everything but the end: neither a whole answer nor an error, nor the last bytes of a stream.

    `tail` holds the latter; who holds this ends the exchange behind it.
    """

    __slots__ = ("_behind", "tail")

    def __init__(self, behind: Exchange) -> None:
        super().__init__(behind.request, behind._wire)
        self._behind = behind
        self.tail = b""

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self._behind.on_disconnect(callback)

    def set_patience(self, patience_s: Callable[[], float]) -> None:
        self._behind.set_patience(patience_s)

    def start(self, status: int, headers: Headers, length_bytes: int | None = None) -> None:
        self._behind.start(status, headers, length_bytes)
        self.started = True

    def send(self, data: bytes) -> Awaitable[None]:
        return self._behind.send(data)

    def fill_silence(self, data: bytes) -> None:
        self._behind.fill_silence(data)

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self.ended = True

    def end(self, data: bytes = b"") -> None:
        self.tail = data
        self.ended = True

    def end_behind(self, data: bytes) -> None:
        self._behind.end(data)
