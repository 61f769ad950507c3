"""Where a gRPC server is: HOST:PORT, with or without TLS, or a Unix socket."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_UNIX = "unix:"


@dataclass(frozen=True)
class ClientTls:
    """PEM files: whose servers are trusted, and what shows them who asks; `name` is the server's.

    `plain_too`: a server that does not speak TLS at all is spoken to without it. One whose certificate is not
    trusted is never.
    """

    ca: str
    cert: str
    key: str
    name: str = ""
    plain_too: bool = False

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.cert, self.key)
        context.set_alpn_protocols(["h2"])
        return context


class Target:
    """Raises OSError where the files of `tls` cannot be used."""

    def __init__(self, url: str, tls: ClientTls | None = None) -> None:
        self.url = url
        self.path = url.removeprefix(_UNIX) if url.startswith(_UNIX) else ""
        host, _, port = ("", "", "0") if self.path else url.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._tls = tls.context() if tls else None
        self._name = (tls.name or self._host) if tls else None
        self._plain_too = tls is not None and tls.plain_too

    @property
    def is_encrypted(self) -> bool:
        return self._tls is not None

    @property
    def authority(self) -> str:
        return "localhost" if self.path else self.url

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        if self.path:
            transport, _ = await loop.create_unix_connection(protocol, self.path)
            return transport
        try:
            opened, _ = await loop.create_connection(
                protocol, self._host, self._port, ssl=self._tls, server_hostname=self._name
            )
        except OSError as error:
            if not (self._plain_too and speaks_no_tls(error)):
                raise
            opened, _ = await loop.create_connection(protocol, self._host, self._port)
        return opened


def speaks_no_tls(error: OSError) -> bool:
    """Whether a handshake failed because the other side answered in another language, or hung up."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    return isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)


def is_private(url: str, tls: ClientTls | None) -> bool:
    """Whether nobody else gets in: the socket is the user's own, or a certificate must be shown."""
    return url.startswith(_UNIX) or tls is not None
