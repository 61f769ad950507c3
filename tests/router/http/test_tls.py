"""TLS with real sockets, and certificates made for the test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from router.http.connection import Connection, Limits
from router.http.exchange import Exchange
from router.http.listener import Listener
from router.http.tls import Certificates, TlsFiles, tls_files
from router.settings import SettingsError
from tests.pace import patience
from tests.waiting import soon, until

AUTHORITY = trustme.CA()
OTHER_AUTHORITY = trustme.CA()
MODELS = b'{"object": "list", "data": [{"id": "tiny", "object": "model", "created": 1, "owned_by": "us"}]}'


@dataclass
class Door:
    """Where a server listens, and the files it reads."""

    port: int
    files: TlsFiles
    certificates: Certificates

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def client(self, context: ssl.SSLContext) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, verify=context, trust_env=False, timeout=patience(10))


def written(directory: Path, authority: trustme.CA = AUTHORITY, client: trustme.CA | None = None) -> TlsFiles:
    """The files of a server; written again, they are renewed in place."""
    directory.mkdir(exist_ok=True)
    made = authority.issue_cert("127.0.0.1", "localhost")
    (directory / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    (directory / "key.pem").write_bytes(made.private_key_pem.bytes())
    if client is not None:
        (directory / "ca.pem").write_bytes(client.cert_pem.bytes())
    paths = [str(directory / name) for name in ("cert.pem", "key.pem", "ca.pem")]
    return TlsFiles(paths[0], paths[1], paths[2] if client else "")


def swapped_key(files: TlsFiles, key: bytes) -> bytes:
    """Writes another key; returns the one that was there."""
    path = Path(files.key)
    before = path.read_bytes()
    path.write_bytes(key)
    return before


def trusting(authority: trustme.CA, client: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if client is not None:
        client.issue_cert("ann@example.org").configure_cert(context)
    return context


async def answer_models(exchange: Exchange) -> None:
    exchange.respond(200, MODELS, [("content-type", "application/json")])


@asynccontextmanager
async def serving(
    files: TlsFiles,
    handler: Callable[[Exchange], Coroutine[Any, Any, None]] = answer_models,
    handshake_timeout_s: float = 5.0,
) -> AsyncIterator[Door]:
    certificates = Certificates(files)
    listener = Listener(handler, lambda status, message, path, headers: ([], message.encode()), Limits())
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(listener),
        "127.0.0.1",
        0,
        ssl=certificates.context(),
        ssl_handshake_timeout=handshake_timeout_s,
    )
    yield Door(server.sockets[0].getsockname()[1], files, certificates)
    server.close()
    await listener.close()


async def test_openai_client_works_over_tls(tmp_path: Path) -> None:
    async with serving(written(tmp_path)) as door:
        http = DefaultAsyncHttpxClient(verify=trusting(AUTHORITY), trust_env=False)
        async with AsyncOpenAI(base_url=f"{door.url}/v1", api_key="any", http_client=http) as client:
            assert [model.id async for model in await client.models.list()] == ["tiny"]


async def test_a_client_that_trusts_another_authority_refuses(tmp_path: Path) -> None:
    async with serving(written(tmp_path)) as door, door.client(trusting(OTHER_AUTHORITY)) as client:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await client.get("/v1/models")


async def test_with_a_client_ca_set_a_client_must_show_its_certificate(tmp_path: Path) -> None:
    async with serving(written(tmp_path, client=OTHER_AUTHORITY)) as door:
        async with door.client(trusting(AUTHORITY, OTHER_AUTHORITY)) as client:
            assert (await client.get("/v1/models")).status_code == 200
        for refused in (trusting(AUTHORITY), trusting(AUTHORITY, AUTHORITY)):
            async with door.client(refused) as client:
                with pytest.raises(httpx.TransportError):
                    await client.get("/v1/models")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
@pytest.mark.parametrize(
    ("version", "is_taken"),
    [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)],
)
async def test_tls_versions_before_1_2_are_refused(
    version: ssl.TLSVersion, is_taken: bool, tmp_path: Path
) -> None:
    context = trusting(AUTHORITY)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    async with serving(written(tmp_path)) as door, door.client(context) as client:
        if is_taken:
            assert (await client.get("/v1/models")).status_code == 200
        else:
            with pytest.raises(httpx.ConnectError):
                await client.get("/v1/models")


async def test_a_new_certificate_is_used_without_a_restart_and_open_connections_go_on(tmp_path: Path) -> None:
    async with serving(written(tmp_path)) as door, door.client(trusting(AUTHORITY)) as before:
        assert (await before.get("/v1/models")).status_code == 200
        assert not door.certificates.refresh()
        written(tmp_path, OTHER_AUTHORITY)
        assert door.certificates.refresh()
        assert (await before.get("/v1/models")).status_code == 200
        async with door.client(trusting(OTHER_AUTHORITY)) as after:
            assert (await after.get("/v1/models")).status_code == 200
        async with door.client(trusting(AUTHORITY)) as late:
            with pytest.raises(httpx.ConnectError):
                await late.get("/v1/models")


async def test_a_replaced_client_ca_is_no_longer_trusted(tmp_path: Path) -> None:
    async with serving(written(tmp_path, client=AUTHORITY)) as door:
        async with door.client(trusting(AUTHORITY, AUTHORITY)) as client:
            assert (await client.get("/v1/models")).status_code == 200
        written(tmp_path, client=OTHER_AUTHORITY)
        assert door.certificates.refresh()
        async with door.client(trusting(AUTHORITY, OTHER_AUTHORITY)) as client:
            assert (await client.get("/v1/models")).status_code == 200
        async with door.client(trusting(AUTHORITY, AUTHORITY)) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/v1/models")


async def test_a_half_written_certificate_renewal_changes_nothing_until_it_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = written(tmp_path)
    async with serving(files) as door, door.client(trusting(AUTHORITY)) as client:
        key = swapped_key(files, AUTHORITY.issue_cert("localhost").private_key_pem.bytes())
        assert not door.certificates.refresh()
        assert not door.certificates.refresh()
        assert caplog.text.count("the old one stays") == 1
        assert (await client.get("/v1/models")).status_code == 200
        swapped_key(files, key)
        assert door.certificates.refresh()


async def test_the_certificate_files_are_watched(tmp_path: Path) -> None:
    async with serving(written(tmp_path)) as door:
        watching = asyncio.create_task(door.certificates.watch(every_s=0.01))
        written(tmp_path, OTHER_AUTHORITY)

        async def is_trusted() -> bool:
            async with door.client(trusting(OTHER_AUTHORITY)) as client:
                try:
                    return (await client.get("/v1/models")).status_code == 200
                except httpx.ConnectError:
                    return False

        await until(is_trusted, "the new certificate was not taken up")
        watching.cancel()


async def test_a_stalled_tls_handshake_is_closed(tmp_path: Path) -> None:
    async with serving(written(tmp_path), handshake_timeout_s=0.2) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(b"\x16\x03\x01")
        assert await soon(reader.read()) == b""
        writer.close()


async def test_plain_http_on_a_tls_port_gets_no_answer(tmp_path: Path) -> None:
    async with serving(written(tmp_path)) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/" not in await soon(reader.read())
        writer.close()


def test_no_tls_settings_mean_no_tls_and_a_part_of_them_is_refused() -> None:
    assert tls_files("", "", "") is None
    assert tls_files("cert", "key", "") == TlsFiles("cert", "key")
    for given, missing in (
        (("c", "", ""), "tls_key"),
        (("", "k", ""), "tls_cert"),
        (("", "", "ca"), "tls_cert"),
    ):
        with pytest.raises(SettingsError, match=f"{missing} is missing"):
            tls_files(*given)


def test_unusable_certificate_files_stop_the_start_by_name(tmp_path: Path) -> None:
    good = written(tmp_path)
    encrypted = tmp_path / "encrypted.pem"
    private = serialization.load_pem_private_key(Path(good.key).read_bytes(), None)
    encrypted.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    for files, message in (
        (TlsFiles(good.cert, str(tmp_path / "none.pem")), r"none\.pem: .*No such file"),
        (TlsFiles(good.key, good.key), "tls_cert, tls_key"),
        (TlsFiles(good.cert, str(encrypted)), "the key is encrypted"),
        (TlsFiles(good.cert, good.key, str(tmp_path / "none.pem")), "tls_client_ca"),
        (TlsFiles(good.cert, good.key, good.key), "tls_client_ca"),
    ):
        with pytest.raises(SettingsError, match=message):
            Certificates(files)


def test_a_grpc_server_has_the_same_certificates_and_reloads_them(tmp_path: Path) -> None:
    files = written(tmp_path, client=OTHER_AUTHORITY)
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_secure_port("127.0.0.1:0", Certificates(files).grpc_credentials())
    server.start()

    def answers(authority: trustme.CA, client: trustme.CA | None) -> bool:
        pair: list[bytes] = []
        if client is not None:
            made = client.issue_cert("ann@example.org")
            pair = [made.private_key_pem.bytes(), made.cert_chain_pems[0].bytes()]
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), *pair)
        with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
            try:
                channel.unary_unary("/none/none", bytes, bytes)(b"", timeout=patience(10))
            except grpc.RpcError as error:
                return error.code() is grpc.StatusCode.UNIMPLEMENTED
        return False

    try:
        assert answers(AUTHORITY, OTHER_AUTHORITY)
        assert not answers(AUTHORITY, None)
        assert not answers(AUTHORITY, AUTHORITY)
        written(tmp_path, OTHER_AUTHORITY, client=OTHER_AUTHORITY)
        assert answers(OTHER_AUTHORITY, OTHER_AUTHORITY)
    finally:
        server.stop(None).wait()
