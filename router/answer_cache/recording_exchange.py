"""An answer on its way to its client, of which a copy is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.http.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from router.http.exchange import Headers


class RecordingExchange(Exchange):
    """Passes everything on. What is more than `most_bytes`, or was cut off, is no whole copy."""

    __slots__ = ("_behind", "_most_bytes", "_pieces", "_size_bytes", "answer_headers", "is_stream")

    def __init__(self, behind: Exchange, most_bytes: int) -> None:
        super().__init__(behind.request, behind._wire)
        self._behind = behind
        self._most_bytes = most_bytes
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self.answer_headers: tuple[tuple[str, str], ...] = ()
        self.is_stream = False

    @property
    def copy(self) -> bytes | None:
        """All that was sent, once it has ended well."""
        return b"".join(self._pieces) if self.ended and self._size_bytes <= self._most_bytes else None

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        self._behind.on_disconnect(callback)

    def set_patience(self, patience_s: Callable[[], float]) -> None:
        self._behind.set_patience(patience_s)

    def start(self, status: int, headers: Headers, length_bytes: int | None = None) -> None:
        self.started, self.status, self.is_stream = True, status, True
        self.answer_headers = tuple(headers)
        self._behind.start(status, self.answer_headers, length_bytes)

    def send(self, data: bytes) -> Awaitable[None]:
        self._record(data)
        return self._behind.send(data)

    def fill_silence(self, data: bytes) -> None:
        self._behind.fill_silence(data)

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self.started = self.ended = True
        self.status, self.answer_headers = status, tuple(headers)
        self._record(body)
        self._behind.respond(status, body, self.answer_headers)

    def end(self, data: bytes = b"") -> None:
        self.ended = not self._behind.gone
        self._record(data)
        self._behind.end(data)

    def cut(self) -> None:
        self._behind.cut()

    def _record(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._size_bytes <= self._most_bytes:
            self._pieces.append(data)
