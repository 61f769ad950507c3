"""Stands in for a pipeline: plays a script of deltas, pauses and errors, and remembers what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tritonclient.grpc import service_pb2

from python_backend.wire import codec
from router.core.generation import Delta, GenerationCall
from router.core.images import Vision
from router.core.trace import Trace
from router.routing.replay import Replay

# A number is a pause in seconds, an event is waited for, None waits until somebody stops the generation.
Step = Delta | float | asyncio.Event | Exception | None
Script = Callable[[GenerationCall], Sequence[Step]]


def words(*texts: str, prompt_tokens: int = 7, finish: str = "end_id") -> list[Step]:
    """One delta of one token per text, and an end without text."""
    deltas = [Delta(text, completion_tokens=1, prompt_tokens=prompt_tokens) for text in texts]
    return [*deltas, Delta("", prompt_tokens=prompt_tokens, finish=finish)]


class FakeGeneration:
    def __init__(self, steps: Sequence[Step], *, deaf: bool = False, told: Sequence[Delta] = ()) -> None:
        self._steps = list(steps)
        text, tokens = "".join(delta.text for delta in told), sum(delta.completion_tokens for delta in told)
        self._replay = Replay(text, tokens, 0) if told else None
        self._deaf = deaf
        self._stop = asyncio.Event()
        self.ended = False
        self.delivered = 0

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        if not self.ended:
            self._stop.set()

    def __aiter__(self) -> FakeGeneration:
        return self

    async def __anext__(self) -> Delta:
        while not self.ended:
            if self.stopped and not self._deaf:
                return self._last(Delta("", finish="cancelled"))
            if not self._steps:
                break
            step = self._steps.pop(0)
            if isinstance(step, Delta):
                await asyncio.sleep(0)
                self.delivered += 1
                if self._replay is not None and not self._replay.is_through:
                    if (news := self._replay.pass_over(step)) is None:
                        continue
                    step = news
                return self._last(step) if step.finish else step
            if isinstance(step, Exception):
                self.ended = True
                raise step
            await self._pause(step)
        self.ended = True
        raise StopAsyncIteration

    def _last(self, delta: Delta) -> Delta:
        self.ended = True
        return delta

    async def _pause(self, until: float | asyncio.Event | None) -> None:
        if isinstance(until, asyncio.Event):
            waits = [asyncio.ensure_future(each.wait()) for each in (until, self._stop)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            return
        try:
            await asyncio.wait_for(self._stop.wait(), until)
        except asyncio.TimeoutError:
            return


class FakeRelay:
    """The same script, told by the ensemble's contract."""

    def __init__(self, generation: FakeGeneration, request_id: str) -> None:
        self._generation = generation
        self._request_id = request_id

    def stop(self) -> None:
        self._generation.stop()

    def __aiter__(self) -> FakeRelay:
        return self

    async def __anext__(self) -> Any:
        return _response(await self._generation.__anext__(), self._request_id)


def _response(delta: Delta, request_id: str) -> Any:
    response = service_pb2.ModelInferResponse(id=request_id)
    outputs: list[tuple[str, str, Any]] = [
        ("text_output", "BYTES", delta.text),
        ("num_input_tokens", "INT32", delta.prompt_tokens),
        ("num_output_tokens", "INT32", delta.completion_tokens),
    ]
    if delta.finish is not None:
        outputs.append(("finish_reason", "BYTES", delta.finish))
    for name, dtype, value in outputs:
        response.outputs.add(name=name, datatype=dtype, shape=[1])
        response.raw_output_contents.append(codec.encode(dtype, [value]))
    response.parameters["triton_final_response"].bool_param = delta.finish is not None
    return response


class FakePipeline:
    def __init__(
        self, script: Script | None = None, *, is_ready: bool = True, vision: Vision | None = None
    ) -> None:
        self.vision = vision
        self.script: Script = script or (lambda call: words("Hello", " world"))
        self.is_ready = is_ready
        self.calls: list[GenerationCall] = []
        self.generations: list[FakeGeneration] = []
        self.relayed: list[Any] = []

    def relay(self, request: Any, trace: Trace | None = None) -> FakeRelay:
        self.relayed.append(request)
        return FakeRelay(
            self.generate(GenerationCall(request_id=request.id, prompt="", max_tokens=0, seed=0)), request.id
        )

    def generate(self, call: GenerationCall, told: Sequence[Delta] = ()) -> FakeGeneration:
        self.calls.append(call)
        generation = FakeGeneration(self.script(call), told=told)
        self.generations.append(generation)
        return generation

    async def ready(self) -> bool:
        return self.is_ready
