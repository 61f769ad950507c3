"""A request from inside the router: answered by the same endpoints, and collected instead of sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.http.exchange import Exchange, Request

if TYPE_CHECKING:
    from collections.abc import Generator


class Turn:
    """Lets others have a turn, as a socket would; nobody has to await it."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class InnerWire:
    """Stands where a connection would; `Exchange` frames nothing for HTTP/1.0, so bytes come as they are."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    @property
    def written(self) -> bytes:
        return b"".join(self._pieces)

    def date(self) -> str:
        return ""

    def peer(self) -> str:
        return ""

    def write(self, data: bytes) -> Turn:
        self._pieces.append(data)
        return Turn()

    def finished(self, exchange: Exchange) -> None: ...


class InnerExchange(Exchange):
    """One request with a body in JSON, and the whole answer to it."""

    __slots__ = ("_inner",)

    def __init__(self, path: str, body: bytes, method: str = "POST") -> None:
        self._inner = InnerWire()
        headers = {"content-type": "application/json"}
        super().__init__(Request(method, path, headers, body, version="1.0", keep_alive=False), self._inner)

    @property
    def headers(self) -> dict[str, str]:
        """Of the answer; names in lower case."""
        lines = self._inner.written.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def body(self) -> bytes:
        return self._inner.written.partition(b"\r\n\r\n")[2]
