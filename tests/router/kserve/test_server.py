from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from router.core.tenant import LOCAL_CALLER, NO_LIMITS, Limits
from router.http.tls import Certificates
from router.kserve import server as kserve_server
from router.kserve.server import KserveServer
from router.request.identity import Doorkeeper
from tests.router.http.test_tls import AUTHORITY, written
from tests.router.kserve.running import MAX_MESSAGE_BYTES, RunningKserve
from tests.router.running import MODEL
from tests.waiting import soon


async def test_a_port_that_is_taken_is_an_error_and_not_shared(kserve: RunningKserve) -> None:
    doorkeeper = Doorkeeper(kserve.router.parts.tenancy, is_private=True, keyless=LOCAL_CALLER)
    second = KserveServer(kserve.door, doorkeeper, kserve.router.parts.accounts, 1 << 20)
    with pytest.raises(OSError, match="cannot listen for gRPC"):
        await second.start("127.0.0.1", int(kserve.grpc_url.rpartition(":")[2]))
    await second.stop()


async def test_with_certificates_the_grpc_server_accepts_tls_alone(
    kserve: RunningKserve, tmp_path: Path
) -> None:
    doorkeeper = Doorkeeper(kserve.router.parts.tenancy, is_private=True, keyless=LOCAL_CALLER)
    credentials = Certificates(written(tmp_path)).grpc_credentials()
    server = KserveServer(kserve.door, doorkeeper, kserve.router.parts.accounts, 1 << 20, credentials)
    port = await server.start("127.0.0.1", 0)
    trusting = grpc.ssl_channel_credentials(AUTHORITY.cert_pem.bytes())
    question = service_pb2.ServerLiveRequest()
    async with grpc.aio.secure_channel(f"localhost:{port}", trusting) as channel:
        assert (await service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(question)).live
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive(question)
    await server.stop()


async def test_a_connection_without_a_handshake_is_closed(
    kserve: RunningKserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kserve_server, "HANDSHAKE_TIMEOUT_S", 0.2)
    doorkeeper = Doorkeeper(kserve.router.parts.tenancy, is_private=True, keyless=LOCAL_CALLER)
    server = KserveServer(kserve.door, doorkeeper, kserve.router.parts.accounts, 1 << 20)
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await soon(reader.read())  # to its end
    writer.close()
    await server.stop()


@pytest.mark.parametrize(
    ("limits", "key", "code"),
    [
        (NO_LIMITS, "ik-unknown", grpc.StatusCode.UNAUTHENTICATED),
        (Limits(requests_per_min=0), "", grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_a_call_that_is_refused_anyway_ends_before_its_message_is_read(
    kserve: RunningKserve, limits: Limits, key: str, code: grpc.StatusCode
) -> None:
    """Were it read, it would be refused for its size."""
    router = kserve.router
    own = await router.new_key(await router.new_tenant(limits=limits))
    metadata = (("authorization", f"Bearer {key or own}"),)
    message = service_pb2.ModelInferRequest(
        model_name=MODEL, raw_input_contents=[b"x" * (2 * MAX_MESSAGE_BYTES)]
    )
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(message, metadata=metadata)
    assert caught.value.code() is code
    assert "larger than max" not in (caught.value.details() or "")
    trailers: Any = caught.value.trailing_metadata()
    assert "x-request-id" in dict(trailers)
    found = router.metrics.registry.collect()
    counted = [each for family in found for each in family.samples if each.name == "inflight_requests_total"]
    [[route, value]] = [[each.labels["route"], each.value] for each in counted]
    assert (route, value) == ("grpc ModelInfer", 1)
