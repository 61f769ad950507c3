"""How a Triton server is reached, and by whom alone: a socket of this user's, or TLS with certificates.

Whoever reaches Triton's gRPC can load a model, which is to run code as Triton's user. So there is no way in
for other users of the machine, nor for anybody on the network who does not have the secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from launcher.stack.triton_certificates import SERVER_NAME, Authority

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.stack.triton_certificates import TlsFiles

ADDRESS = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")
_NO_PROXY = (("grpc.enable_http_proxy", 0),)


class TritonDoor(Protocol):
    """`url` is what gRPC's clients on this machine connect to."""

    @property
    def url(self) -> str: ...

    @property
    def options(self) -> list[str]:
        """Of Triton's command line; nothing in them is secret."""

    @property
    def router_settings(self) -> dict[str, Any]:
        """What a router is told about this server."""

    def channel(self) -> grpc.Channel:
        """For this process, new at each call: a reused one waits longer and longer between attempts."""


@dataclass(frozen=True)
class SocketDoor:
    """A Unix socket in a directory that nobody else can enter; also quicker than a port on loopback."""

    path: Path
    number: int  # Triton wants a port, and makes it part of the socket's name

    @property
    def url(self) -> str:
        return f"unix:{self.path}:{self.number}"

    @property
    def options(self) -> list[str]:
        return [f"--grpc-address=unix:{self.path}", f"--grpc-port={self.number}"]

    @property
    def router_settings(self) -> dict[str, Any]:
        return {"url": self.url}

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.url, options=_NO_PROXY)


@dataclass(frozen=True)
class TlsDoor:
    """A port where both sides show a certificate."""

    host: str
    port: int
    server: TlsFiles
    client: TlsFiles

    @property
    def url(self) -> str:
        return f"{reached_at(self.host)}:{self.port}"

    @property
    def options(self) -> list[str]:
        return [
            f"--grpc-address={self.host}",
            f"--grpc-port={self.port}",
            "--grpc-use-ssl-mutual=true",
            f"--grpc-server-cert={self.server.certificate}",
            f"--grpc-server-key={self.server.key}",
            f"--grpc-root-cert={self.server.authority}",
        ]

    @property
    def router_settings(self) -> dict[str, Any]:
        return tls_settings(self.url, self.client)

    def channel(self) -> grpc.Channel:
        files = (self.client.authority, self.client.key, self.client.certificate)
        credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        return grpc.secure_channel(
            self.url, credentials, (*_NO_PROXY, ("grpc.ssl_target_name_override", SERVER_NAME))
        )


def tls_settings(url: str, client: TlsFiles) -> dict[str, Any]:
    return {
        "url": url,
        "tls_ca": str(client.authority),
        "tls_cert": str(client.certificate),
        "tls_key": str(client.key),
        "tls_name": SERVER_NAME,
    }


def tls_door(host: str, port: int, secret: str, directory: Path) -> TlsDoor:
    authority = Authority(secret)
    return TlsDoor(host, port, authority.write_for_server(directory), authority.write_for_client(directory))


def reached_at(host: str) -> str:
    """Where this machine reaches what listens there."""
    if host in EVERYWHERE:
        return ADDRESS
    return f"[{host}]" if ":" in host else host
