"""gRPC's own health service and reflection, by the libraries that ask them."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from router.kserve.standard_services import SERVICES
from tests.router.kserve.running import RunningKserve

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(kserve: RunningKserve, service: str = "") -> int:
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)


@pytest.mark.parametrize("service", ["", *SERVICES])
async def test_a_probe_needs_no_key_and_hears_whether_requests_would_be_served(
    kserve: RunningKserve, service: str
) -> None:
    await kserve.router.new_key(await kserve.router.new_tenant())
    assert await health(kserve, service) == SERVING
    kserve.router.permits.drain()
    assert await health(kserve, service) == NOT_SERVING


async def test_an_unknown_service_is_not_found(kserve: RunningKserve) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="service 'nope' does not exist") as refused:
        await health(kserve, "nope")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_nobody_can_hold_a_watch_open(kserve: RunningKserve) -> None:
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()).read()
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_describes_every_service(kserve: RunningKserve) -> None:
    def look() -> tuple[list[str], list[str]]:
        with grpc.insecure_channel(kserve.grpc_url) as channel:
            found = ProtoReflectionDescriptorDatabase(channel)
            described = found.FindFileContainingSymbol("inference.GRPCInferenceService")
            return list(found.get_services()), [method.name for method in described.service[0].method]

    services, methods = await asyncio.to_thread(look)
    assert sorted(services) == sorted(SERVICES)
    assert "ModelInfer" in methods


async def test_reflection_takes_a_key_once_there_are_some(kserve: RunningKserve) -> None:
    key = await kserve.router.new_key(await kserve.router.new_tenant())
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            # Nothing is asked: a client that still sends when it is refused reports its own sending.
            await stub.ServerReflectionInfo().read()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", f"Bearer {key}"),)
        answer = await stub.ServerReflectionInfo(iter([asked]), metadata=metadata).read()
    assert answer.list_services_response.service
