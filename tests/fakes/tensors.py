"""Stands in for a model of tensors: plays a script of responses, pauses and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tritonclient.grpc import service_pb2

from router.kserve.tensors import encode

# A number is a pause in seconds, None waits until somebody stops it.
Step = Any
Script = Callable[[Any], Sequence[Step]]


def response(*outputs: tuple[str, str, Sequence[int], Any], final: bool = False) -> Any:
    """Each output by name, type, shape and its elements, or its bytes."""
    message = service_pb2.ModelInferResponse()
    for name, dtype, shape, data in outputs:
        message.outputs.add(name=name, datatype=dtype, shape=shape)
        message.raw_output_contents.append(data if isinstance(data, bytes) else encode(dtype, data))
    message.parameters["triton_final_response"].bool_param = final
    return message


class FakeTensorStream:
    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)
        self._stop = asyncio.Event()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()

    def __aiter__(self) -> FakeTensorStream:
        return self

    async def __anext__(self) -> Any:
        while self._steps and not self.stopped:
            step = self._steps.pop(0)
            if isinstance(step, Exception):
                raise step
            if not isinstance(step, float | None):
                await asyncio.sleep(0)
                return step
            try:
                await asyncio.wait_for(self._stop.wait(), step)
            except asyncio.TimeoutError:
                continue
        raise StopAsyncIteration


class FakeTensors:
    """`cancelled` counts the calls that were given up before they had an answer."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.is_ready = True
        self.requests: list[Any] = []
        self.streams: list[FakeTensorStream] = []
        self.began = asyncio.Event()
        self.cancelled = 0

    async def infer(
        self, request: Any, timeout_s: float, on_lost: Callable[[int], None] | None = None
    ) -> Any:
        try:
            return await self.stream(request).__anext__()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def stream(self, request: Any) -> FakeTensorStream:
        self.requests.append(request)
        self.began.set()
        self.streams.append(FakeTensorStream(self.script(request)))
        return self.streams[-1]

    async def ready(self) -> bool:
        return self.is_ready
