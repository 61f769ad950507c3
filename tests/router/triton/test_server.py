"""A server is two ways to one Triton: the one for requests does not carry the secret."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2

from router.grpc.status import GrpcError
from router.triton.server import TritonServer
from tests.fakes.controlled_triton import SECRET, ControlledTriton, FakeModel


async def test_requests_are_sent_without_the_secret_and_control_calls_with_it() -> None:
    triton = await ControlledTriton({"a": FakeModel()}).start()
    server = TritonServer("one", triton.url, SECRET)
    assert server.control.can_control
    assert await server.connection.ready("a")
    await server.control.unload("a")
    assert not await server.connection.ready("a")
    index = service_pb2.RepositoryIndexRequest()
    with pytest.raises(GrpcError, match="restricted"):
        await server.connection.call("RepositoryIndex", index, service_pb2.RepositoryIndexResponse)
    assert SECRET not in repr(server)
    await server.close()
    await triton.stop()
