"""grpcio's own server with a service that does what a test asks for, in this process or in another."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc


@dataclass
class RealServer:
    """Requests tell by their parameters what to do with them; see `ModelStreamInfer`."""

    options: list[tuple[str, Any]] = field(default_factory=list)
    port: int = 0
    socket_path: str = ""  # instead of a port
    credentials: grpc.ServerCredentials | None = None
    open_streams: int = 0
    cancelled: int = 0
    most_streams: int = 0
    peers: set[str] = field(default_factory=set)

    async def start(self) -> RealServer:
        options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0), *self.options]
        self._server = grpc.aio.server(options=options)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Service(self), self._server)
        if self.credentials is not None:
            self.port = self._server.add_secure_port(self.url, self.credentials)
        else:
            self.port = self._server.add_insecure_port(self.url)
        await self._server.start()
        return self

    async def stop(self, grace_s: float | None = None) -> None:
        await self._server.stop(grace_s)

    async def serve(self) -> None:
        await self._server.wait_for_termination()

    @property
    def url(self) -> str:
        return f"unix:{self.socket_path}" if self.socket_path else f"127.0.0.1:{self.port}"


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # untyped base
    def __init__(self, server: RealServer) -> None:
        self._server = server

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """Sends the first input back."""
        response = service_pb2.ModelInferResponse(id=request.id)
        response.raw_output_contents.extend(request.raw_input_contents)
        return response

    async def ModelStreamInfer(self, requests: Any, context: Any) -> Any:
        """`count` responses of `size` bytes each, `pause_s` apart, then OK or the status `code`."""
        server = self._server
        server.open_streams += 1
        server.most_streams = max(server.most_streams, server.open_streams)
        server.peers.add(context.peer())
        try:
            async for request in requests:
                what = request.parameters
                for number in range(what["count"].int64_param):
                    await asyncio.sleep(what["pause_s"].double_param)
                    yield _response(f"{request.id}-{number}", what["size"].int64_param)
                if code := what["code"].int64_param:
                    status = next(status for status in grpc.StatusCode if status.value[0] == code)
                    await context.abort(status, what["details"].string_param)
        except (asyncio.CancelledError, GeneratorExit):  # the latter where a response was being written
            server.cancelled += 1
            raise
        finally:
            server.open_streams -= 1


def _response(name: str, size: int) -> Any:
    response = service_pb2.ModelInferResponse(id=name)
    response.raw_output_contents.append(bytes(size))
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def order(
    name: str = "r",
    count: int = 1,
    size: int = 10,
    pause_s: float = 0.0,
    code: int = 0,
    details: str = "",
    payload: bytes = b"",
) -> Any:
    """A request for the service above."""
    request = service_pb2.ModelInferRequest(id=name, raw_input_contents=[payload])
    request.parameters["count"].int64_param = count
    request.parameters["size"].int64_param = size
    request.parameters["pause_s"].double_param = pause_s
    request.parameters["code"].int64_param = code
    request.parameters["details"].string_param = details
    return request


async def _main() -> None:
    server = await RealServer(port=int(sys.argv[1])).start()
    print(server.port, flush=True)
    await server.serve()


if __name__ == "__main__":
    asyncio.run(_main())
