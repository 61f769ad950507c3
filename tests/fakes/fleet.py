"""Stands in for Triton servers behind a fleet: each plays scripts of deltas, failures and silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, cast

from tritonclient.grpc import service_pb2

from python_backend.wire import codec
from python_backend.wire.errors import ENGINE_AWAY, ENGINE_DIED
from router.core.generation import Delta
from router.core.manifest import Kind, Manifest
from router.grpc.status import GrpcError, StatusCode
from router.routing.replicas import Fleet, ReplicaSet
from router.triton.server import TritonServer

# None is silence: nothing more comes until the call is given up or its engine is told to stop.
Step = Delta | GrpcError | str | None
Script = Callable[[Any], Sequence[Step]]

MANIFEST = Manifest("smol", 1, Kind.TEXT, ("smol.1.tensorrt_llm", "smol.1"), "smol.1.tensorrt_llm")
LOST = GrpcError(StatusCode.UNAVAILABLE, "the connection was lost", lost=True)
DEAD_ENGINE = f"in ensemble 'smol.1', engine_failed: {ENGINE_DIED} (killed by SIGKILL); try again"
AWAY = f"in ensemble 'smol.1', engine_failed: {ENGINE_AWAY}"
DEAD_STUB = "in ensemble 'smol.1', Stub process 'smol.1.tensorrt_llm_0_0' is not healthy"


def response_of(delta: Delta) -> Any:
    response = service_pb2.ModelInferResponse()
    outputs: list[tuple[str, str, Sequence[Any]]] = [
        ("text_output", "BYTES", [delta.text]),
        ("num_input_tokens", "INT32", [delta.prompt_tokens]),
        ("num_output_tokens", "INT32", [delta.completion_tokens]),
        ("finish_reason", "BYTES", [delta.finish or ""]),
        ("cached_tokens", "INT32", [delta.cached_tokens]),
    ]
    if delta.tokens:
        outputs += [
            ("top_tokens", "BYTES", [token.piece for token in delta.tokens]),
            ("top_log_probs", "FP32", [token.log_prob for token in delta.tokens]),
            ("token_characters", "INT32", [token.characters for token in delta.tokens]),
        ]
    if delta.context:
        outputs.append(("out_context_phase_params", "UINT8", list(delta.context)))
    for name, dtype, values in outputs:
        response.outputs.add(name=name, datatype=dtype, shape=[len(values)])
        response.raw_output_contents.append(codec.encode(dtype, values))
    response.parameters["triton_final_response"].bool_param = delta.finish is not None
    return response


class FakeCall:
    """A call that ends when its steps do, or when somebody gives it up."""

    def __init__(self, steps: Sequence[Any], on_end: Callable[[], None] | None = None) -> None:
        self._steps = list(steps)
        self._waiter: asyncio.Future[None] | None = None
        self._is_here = False  # what comes next has come: each step takes a turn of the event loop
        self._on_end = on_end
        self._is_stopped = False
        self._is_unread = False
        self.error: GrpcError | None = None
        self.ended = False

    @property
    def messages(self) -> bool:
        """Whether it is worth to `take`."""
        return self._is_here

    def take(self) -> bytes | None:
        if not self._is_here or self.error is not None:
            return None
        self._is_here = False
        if self._is_stopped and not self.ended:
            self._steps = []
            self._end()
            return _streamed(Delta("", finish="cancelled"))
        if not self._steps:
            self._end()
            return None
        if self._steps[0] is None:
            return None
        step = self._steps.pop(0)
        if isinstance(step, GrpcError):
            self.error = step
            self._end()
            return None
        return _streamed(step)

    def arrival(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        if not self._steps or self._steps[0] is not None or self._is_stopped or self.error is not None:
            loop.call_soon(self._arrive)
        return self._waiter

    def _arrive(self) -> None:
        self._is_here = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> bytes | None:
        while (data := self.take()) is None:
            if self.ended:
                if self.error is not None:
                    raise self.error
                return None
            await self.arrival()
        return data

    def cancel(self) -> None:
        if not self.ended:
            self.error = GrpcError(StatusCode.CANCELLED, "cancelled by the caller")
            self._end()

    def discard(self) -> None:
        self._is_unread = True
        if None not in self._steps or self._is_stopped:
            self._end()

    def told_to_stop(self) -> None:
        self._is_stopped = True
        self._arrive()
        if self._is_unread:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._arrive()
        if self._on_end is not None:
            callback, self._on_end = self._on_end, None
            callback()


def _streamed(step: Any) -> bytes:
    if isinstance(step, bytes):
        return step
    message = service_pb2.ModelStreamInferResponse()
    if isinstance(step, str):
        message.error_message = step
    else:
        message.infer_response.CopyFrom(response_of(step) if isinstance(step, Delta) else step)
    return bytes(message.SerializeToString())


class FakeStream:
    """The way a `stop` takes."""

    def __init__(self, call: FakeCall) -> None:
        self.call = call

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (data := await self.call.read()) is not None:
            yield data


class FakeConnection:
    """`stops` are the ids of what was stopped; a connection that is `deaf` does nothing about them."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.stop_timeout_s = 0.02
        self.requests: list[Any] = []
        self.stops: list[str] = []
        self.is_ready = True
        self.is_deaf = False
        self._calls: dict[str, FakeCall] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    def infer_bytes(
        self, request: bytes, timeout_s: float | None = None, on_end: Callable[[], None] | None = None
    ) -> FakeCall:
        return self._begin(service_pb2.ModelInferRequest.FromString(request), on_end)

    def infer(self, request: Any, timeout_s: float | None = None) -> FakeStream:
        self.stops.append(request.id)
        if not self.is_deaf:
            self._calls[request.id].told_to_stop()
        return FakeStream(FakeCall([]))

    def begin_once(self, request: Any, timeout_s: float | None, on_end: Callable[[], None]) -> FakeCall:
        return self._begin(request, on_end)

    async def ready(self, model: str) -> bool:
        return self.is_ready

    def run_stop(self, delivery: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(delivery)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def close(self) -> None:
        if self._stopping:
            await asyncio.wait(self._stopping)

    def _begin(self, request: Any, on_end: Callable[[], None] | None) -> FakeCall:
        self.requests.append(request)
        call = self._calls[request.id] = FakeCall(self.script(request), on_end)
        return call


class FakeServer:
    def __init__(self, name: str, script: Script) -> None:
        self.name = name
        self.connection = FakeConnection(script)


def fleet_of(*scripts: Script, manifest: Manifest = MANIFEST) -> tuple[ReplicaSet, list[FakeConnection]]:
    """One server for each script, s0 and so on."""
    servers = [FakeServer(f"s{number}", script) for number, script in enumerate(scripts)]
    fleet = Fleet([cast("TritonServer", server) for server in servers])
    return fleet.set_of(manifest), [server.connection for server in servers]
