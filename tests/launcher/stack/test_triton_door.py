"""Who gets into Triton: grpcio's own server with our certificates, asked by the router's client."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from launcher.stack.runs import Run
from launcher.stack.triton_certificates import SERVER_NAME, Authority, TlsFiles
from launcher.stack.triton_door import SocketDoor, tls_door
from router.grpc.status import GrpcError
from router.grpc.target import ClientTls
from router.triton.control import TritonControl
from tests.router.grpc.real_server import RealServer
from tests.waiting import until

SECRET = "a secret of both machines"


def credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """As Triton has them with --grpc-use-ssl-mutual."""
    pair = (files.key.read_bytes(), files.certificate.read_bytes())
    return grpc.ssl_server_credentials([pair], files.authority.read_bytes(), require_client_auth=True)


def shown(files: TlsFiles, name: str = SERVER_NAME) -> ClientTls:
    return ClientTls(str(files.authority), str(files.certificate), str(files.key), name)


@asynccontextmanager
async def serving(files: TlsFiles) -> AsyncIterator[RealServer]:
    server = await RealServer(credentials=credentials(files)).start()
    try:
        yield server
    finally:
        await server.stop()


async def is_let_in(url: str, tls: ClientTls | None) -> bool:
    control = TritonControl(url, tls=tls)
    try:
        return await control.is_alive()
    finally:
        await control.close()


async def test_both_sides_of_one_secret_trust_each_other(tmp_path: Path) -> None:
    server_files = Authority(SECRET).write_for_server(tmp_path / "one machine")
    client_files = Authority(SECRET).write_for_client(tmp_path / "another")
    async with serving(server_files) as server:
        assert await is_let_in(server.url, shown(client_files))


async def test_a_closed_connection_is_soon_gone_though_the_server_answers_no_goodbye(tmp_path: Path) -> None:
    """Or a Triton that routers have left would not stop before half a minute has passed."""
    server_files = Authority(SECRET).write_for_server(tmp_path / "one machine")
    client_files = Authority(SECRET).write_for_client(tmp_path / "another")
    async with serving(server_files) as server:

        def is_connected() -> bool:
            ours = psutil.Process().net_connections("tcp")
            return any(each.raddr and each.raddr.port == server.port for each in ours)

        control = TritonControl(server.url, tls=shown(client_files))
        assert await control.is_alive()
        assert is_connected()
        await control.close()
        await until(lambda: not is_connected(), "the connection is still there")


async def test_nobody_gets_in_without_a_certificate_of_the_secret(tmp_path: Path) -> None:
    door = tls_door("127.0.0.1", 0, SECRET, tmp_path / "ours")
    foreign = Authority("another secret of somebody else").write_for_client(tmp_path / "theirs")
    mixed = TlsFiles(door.client.authority, foreign.certificate, foreign.key)
    async with serving(door.server) as server:
        assert not await is_let_in(server.url, None)
        assert not await is_let_in(server.url, shown(mixed))
        assert await is_let_in(server.url, shown(door.client))


async def test_the_router_tells_its_requests_to_no_server_without_the_secret(tmp_path: Path) -> None:
    """Somebody who took the port while Triton was down; a router's certificate makes no server either."""
    door = tls_door("127.0.0.1", 0, SECRET, tmp_path / "ours")
    theirs = Authority("another secret of somebody else").write_for_server(tmp_path / "theirs")
    for files in (theirs, TlsFiles(door.client.authority, door.client.certificate, door.client.key)):
        async with serving(files) as server:
            assert not await is_let_in(server.url, shown(door.client))


async def test_a_server_of_0_7_is_asked_without_tls_where_that_is_allowed_and_a_strange_one_never(
    tmp_path: Path,
) -> None:
    ours = shown(tls_door("127.0.0.1", 0, SECRET, tmp_path / "ours").client)
    theirs = Authority("another secret of somebody else").write_for_server(tmp_path / "theirs")
    plain = await RealServer().start()
    try:
        assert not await is_let_in(plain.url, ours)
        assert await is_let_in(plain.url, replace(ours, plain_too=True))
    finally:
        await plain.stop()
    async with serving(theirs) as server:
        assert not await is_let_in(server.url, replace(ours, plain_too=True))


async def test_only_tls_a_socket_or_a_secret_make_a_server_controllable(tmp_path: Path) -> None:
    door = tls_door("127.0.0.1", 8001, SECRET, tmp_path)
    for url, secret, tls, expected in (
        ("127.0.0.1:1", "", None, False),
        ("127.0.0.1:1", "secret", None, True),
        ("127.0.0.1:1", "", shown(door.client), True),
        (f"unix:{tmp_path}/triton:1", "", None, True),
    ):
        control = TritonControl(url, secret, tls)
        assert control.can_control is expected
        await control.close()


async def test_a_socket_serves_the_router_and_tritons_own_clients(tmp_path: Path) -> None:
    door = SocketDoor(tmp_path / "triton", 1)
    assert door.options == [f"--grpc-address=unix:{tmp_path}/triton", "--grpc-port=1"]
    server = await RealServer(socket_path=f"{tmp_path}/triton:1").start()
    try:
        assert await is_let_in(door.url, None)
        async with grpc.aio.insecure_channel(door.url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert (await stub.ServerLive(service_pb2.ServerLiveRequest())).live
    finally:
        await server.stop()


async def test_a_socket_that_is_not_there_is_named() -> None:
    control = TritonControl("unix:/nowhere/triton:1")
    try:
        with pytest.raises(GrpcError, match="no connection to unix:/nowhere/triton:1"):
            await control._connection.call(
                "ServerLive", service_pb2.ServerLiveRequest(), service_pb2.ServerLiveResponse
            )
    finally:
        await control.close()


def test_keys_and_certificates_are_for_the_owner_alone(tmp_path: Path) -> None:
    door = tls_door("0.0.0.0", 8001, SECRET, tmp_path / "tls")
    for files in (door.server, door.client):
        for file in (files.authority, files.certificate, files.key):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["d" * 100, "with space", "größe", "per%20cent"])
def test_a_run_whose_path_no_socket_can_have_uses_a_short_one_and_removes_it(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    run = Run("0123abcd", tmp_path / name)
    directory = run.socket_directory()
    assert len(str(directory)) < 90
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert run.socket_directory() == directory
    (directory / "triton:1").touch()
    run.retire()
    assert not directory.exists()
    assert not run.directory.exists()
