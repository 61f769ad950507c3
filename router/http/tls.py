"""TLS for the doors of the router: certificates from files, and new ones without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from router.settings import SettingsError

if TYPE_CHECKING:
    import grpc

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
_POLL_S = 10.0
# For TLS 1.2: forward secrecy and authenticated encryption alone; those of 1.3 are all of that kind.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_HTTP_1_1 = "http/1.1"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. With a client CA, clients must show a certificate that it has signed."""

    cert: str
    key: str
    client_ca: str = ""


def tls_files(cert: str, key: str, client_ca: str) -> TlsFiles | None:
    """None where nothing is set; a part without the others is refused."""
    if not (cert or key or client_ca):
        return None
    for name, value in (("tls_cert", cert), ("tls_key", key)):
        if not value:
            raise SettingsError(f"{name} is missing: set both tls_cert and tls_key")
    return TlsFiles(cert, key, client_ca)


class Certificates:
    """What the files hold now, read again when one of them changes.

    A context that is in use cannot forget a client CA, and one whose key and certificate do not fit yet would
    fail every handshake. So a change makes new contexts, and each handshake is moved to the newest by its
    first message; when the new files cannot be used, the old ones stay.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamps = self._look()
        self._newest: dict[str, ssl.SSLContext] = {}
        self._refused = False
        self._context(_HTTP_1_1)  # what cannot be used is refused here, before anything is served

    def context(self, protocol: str = _HTTP_1_1) -> ssl.SSLContext:
        """For `create_server(ssl=...)`; `protocol` is told to clients that ask (ALPN)."""
        self._newest[protocol] = self._context(protocol)
        entrance = self._context(protocol)

        def move(handshake: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            handshake.context = self._newest[protocol]

        entrance.sni_callback = move
        return entrance

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """The same files for a server of grpcio, which asks for them anew at each connection."""
        import grpc

        kept: list[grpc.ServerCertificateConfiguration] = []

        def newest() -> grpc.ServerCertificateConfiguration:
            with contextlib.suppress(OSError):  # one that is being replaced: the last one is used
                pair = (_read(self._files.key), _read(self._files.cert))
                roots = _read(self._files.client_ca) if self._files.client_ca else None
                kept[:] = [grpc.ssl_server_certificate_configuration([pair], roots)]
            return kept[0]

        return grpc.dynamic_ssl_server_credentials(newest(), newest, bool(self._files.client_ca))

    async def watch(self, every_s: float = _POLL_S) -> None:
        """A task for as long as the router runs."""
        while True:
            await asyncio.sleep(every_s)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> bool:
        """Takes up files that have changed; tells whether it did."""
        stamps = self._look()
        if stamps == self._stamps:
            return False
        try:
            renewed = {protocol: self._context(protocol) for protocol in self._newest}
        except SettingsError as error:
            if not self._refused:
                log.error("the new certificate is invalid; the old one stays in use: %s", error)
            self._refused = True
            return False
        # Only now: a certificate whose key is still being written is tried again at the next look.
        self._stamps = stamps
        self._refused = False
        self._newest.update(renewed)
        log.info("the new certificate is in use")
        return True

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        paths = (self._files.cert, self._files.key, self._files.client_ca)
        return tuple(_stamp(path) for path in paths if path)

    def _context(self, protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_ciphers(_CIPHERS)
        context.set_alpn_protocols([protocol])
        try:
            context.load_cert_chain(self._files.cert, self._files.key, password=_refuse_encrypted)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SettingsError(
                f"tls_cert, tls_key: {self._files.cert}, {self._files.key}: {error}"
            ) from error
        if self._files.client_ca:
            try:
                context.load_verify_locations(self._files.client_ca)
            except OSError as error:
                raise SettingsError(f"tls_client_ca: {self._files.client_ca}: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED
            # A session that is taken up again skips the check of the certificate.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context


def _stamp(path: str) -> tuple[int, int, int]:
    """Changes with the file, also where a link is moved to another one; zeros while there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _refuse_encrypted() -> NoReturn:
    # OpenSSL would ask for the password at the terminal, and wait.
    raise ValueError("the key is encrypted; use a key without a password, readable only by the router")
