"""One Triton server behind the router: the way for requests, and the way for whoever is in control."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.triton.client import TritonConnection
from router.triton.control import TritonControl

if TYPE_CHECKING:
    from router.grpc.target import ClientTls


class TritonServer:
    """`name` is what figures and messages call it; nothing is connected before it is used."""

    def __init__(
        self,
        name: str,
        url: str,
        secret: str = "",
        stop_timeout_s: float = 5.0,
        tls: ClientTls | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self.connection = TritonConnection(url, stop_timeout_s, tls=tls)
        self.control = TritonControl(url, secret, tls)

    async def close(self) -> None:
        await self.connection.close()
        await self.control.close()

    def __repr__(self) -> str:
        return f"TritonServer({self.name!r}, {self.url!r})"
