"""Any other Triton model by its config: tensors in, tensors out, once or as often as it answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from router.admission.demand import Need
from router.core.answer_text import Answered
from router.core.generation import RawGeneration, read_to_the_end
from router.core.record import Record, new_request_id
from router.kserve.answers import Answer, pick, read_outputs
from router.kserve.offers import Asked, Delivery, Offer
from router.kserve.parameters import EMPTY_FINAL
from router.request.repetition import StopWatch
from router.routing.models import Served, ServedTensors
from router.triton.messages import is_final
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from router.kserve.tensors import RawTensors
    from router.request.permit import Permit, Stoppable
    from router.safety.guard import Safety

# Of a whole answer, its time in Triton's queue included; of a stream, from one response to the next.
TIMEOUT_S = 60.0


def tensor_offer(served: ServedTensors) -> Offer:
    job = partial(TensorJob, served)
    rows, decoupled = served.max_batch_size, served.is_decoupled
    return Offer(served, served.inputs, served.outputs, rows, decoupled, job, has_own_contract=True)


class TensorJob:
    """One request; no tokens are counted, so only limits of requests can refuse it."""

    def __init__(
        self, served: ServedTensors, asked: Asked, record: Record, whole: bool, delivery: Delivery
    ) -> None:
        if whole and served.is_decoupled:
            message = f"the model '{served.name}' may send several responses: call it as a stream"
            raise InflightError(ErrorKind.UNSUPPORTED, message)
        self.served = served
        self._delivery = delivery
        self._kept: list[Answer] | None = None
        self._is_whole = False
        self._inputs = asked.tensors
        self.need = Need(0, sequences=rows_of(asked.tensors, served.max_batch_size))
        self._shown = asked.outputs or frozenset(served.outputs)
        self._record = record
        self._request = build(record.request_id, asked.tensors, asked.outputs, served.is_decoupled)
        self._answer: asyncio.Task[Any] | None = None
        self._generation: RawGeneration | None = None
        self._is_late = False
        self.lost_attempts = 0

    def _lost(self, attempts: int) -> None:
        self.lost_attempts = attempts

    async def check(self, safety: Safety) -> None:
        """What goes in and is text is read; nobody knows what of its outputs is."""
        await safety.admit(self.served.name, self._texts(), self._record.tenant)

    def _texts(self) -> Iterator[str]:
        for tensor in self._inputs.values():
            if tensor.dtype == "BYTES":
                for element in codec.decode("BYTES", tensor.raw):
                    yield element.decode("utf-8", "replace")

    async def run(self, permit: Permit) -> None:
        self._record.dispatched_s = time.monotonic()
        try:
            if self.served.is_decoupled:
                await self._stream(permit)
            else:
                await self._infer(permit)
        except InflightError as error:
            permit.model_failed(error)
            raise

    def fail(self, error: InflightError) -> None:
        self._delivery.fail(error)

    async def _infer(self, permit: Permit) -> None:
        asking = self.served.tensors.infer(self._request, TIMEOUT_S, self._lost)
        self._answer = asyncio.ensure_future(asking)
        permit.attach(self)
        # Its own time limit is for each of the servers that are tried; this one is for them all.
        await asyncio.wait([self._answer], timeout=TIMEOUT_S)
        if permit.cut_by is None:
            if not self._answer.done():
                raise _late()
            await self._tell(self._read(self._answer.result(), final=True), permit)

    async def _stream(self, permit: Permit) -> None:
        self._generation = self.served.tensors.stream(self._request)
        permit.attach(self._generation)
        responses = aiter(self._generation)
        final = False
        while not final and (response := await self._next(responses)) is not None:
            if permit.cut_by is not None or self._is_late:
                continue  # it was told to stop: what still comes is for nobody
            final = is_final(response)
            await self._tell(self._read(response, final), permit)
        if permit.cut_by is None and not final:
            if self._is_late:
                raise _late()
            raise InflightError(ErrorKind.ENGINE_FAILED, "the stream ended before the answer did")

    async def _tell(self, answer: Answer, permit: Permit) -> None:
        if self._kept is not None:
            self._kept.append(answer)
        if answer.final:
            self._is_whole = True
            permit.finished()
        await self._delivery.take(answer)

    async def _next(self, responses: Any) -> Any:
        """None at the end. A silent model is told to stop; the time the client takes to read is not its."""
        deadline = asyncio.get_running_loop().call_later(TIMEOUT_S, self._give_up)
        try:
            return await anext(responses, None)
        except InflightError:
            if not self._is_late:
                raise
            return None
        finally:
            deadline.cancel()

    def _give_up(self) -> None:
        self._is_late = True
        self.stop()

    def stop(self) -> None:
        """Stopping what has ended does nothing."""
        if self._answer is not None:
            self._answer.cancel()
        if self._generation is not None:
            self._generation.stop()

    async def settle(self) -> None:
        self.stop()
        if self._answer is not None:
            await asyncio.gather(self._answer, return_exceptions=True)
            self._answer = None  # a failed one holds its error, which holds this job
        if self._generation is not None:
            await read_to_the_end(self._generation)

    # For observers

    def keep(self) -> None:
        self._kept = []

    def prompts(self) -> Sequence[str]:
        return ()

    def told(self) -> Sequence[str]:
        return ()

    def answered(self) -> Answered | None:
        return None if self._kept is None or not self._is_whole else _comparable(self._kept)

    def repeat(
        self, served: Served, attach: Callable[[Stoppable], None]
    ) -> Coroutine[Any, Any, Answered] | None:
        return self._repeat(served, attach) if isinstance(served, ServedTensors) else None

    async def _repeat(self, served: ServedTensors, attach: Callable[[Stoppable], None]) -> Answered:
        request = service_pb2.ModelInferRequest.FromString(self._request.SerializeToString())
        request.id = new_request_id("shadow")
        watch = StopWatch()
        if not self.served.is_decoupled:
            responses = [await served.tensors.infer(request, TIMEOUT_S)]
        else:
            generation = served.tensors.stream(request)
            attach(generation)
            try:
                responses = [response async for response in generation]
            finally:
                generation.stop()
                await read_to_the_end(generation)
        outputs = [read_outputs(self.served.outputs, response) for response in responses]
        shown = [Answer(pick(each, self._shown), final=True) for each in outputs]
        return replace(_comparable(shown), times=watch.whole())

    def _read(self, response: Any, final: bool) -> Answer:
        record = self._record
        record.received_s = time.monotonic()
        if self.served.is_decoupled:
            record.first_token_s = record.first_token_s or record.received_s
        return Answer(pick(read_outputs(self.served.outputs, response), self._shown), final)


def _comparable(answers: Sequence[Answer]) -> Answered:
    """Numbers as vectors, which may be alike; of anything else only whether it is the same."""
    outputs = [output for answer in answers for output in answer.outputs]
    raw = b"".join(output.raw for output in outputs)
    if raw and all(output.dtype == "FP32" for output in outputs):
        return Answered(vectors=raw, rows=1)
    return Answered((blake2b(raw, digest_size=16).hexdigest(),))


def rows_of(tensors: RawTensors, max_batch_size: int) -> int:
    """What it takes of a batch; of a model without batches, one request is one."""
    first = next(iter(tensors.values()), None)
    return first.shape[0] if max_batch_size > 0 and first is not None else 1


def _late() -> InflightError:
    return InflightError(ErrorKind.OVERLOADED, "the model did not answer in time")


def build(request_id: str, tensors: RawTensors, outputs: frozenset[str], is_decoupled: bool) -> Any:
    """Without the model's name, which the port fills in, and with nothing else that a client chose."""
    message = service_pb2.ModelInferRequest(id=request_id)
    if is_decoupled:
        message.parameters[EMPTY_FINAL].bool_param = True
    for name, tensor in tensors.items():
        message.inputs.add(name=name, datatype=tensor.dtype, shape=tensor.shape)
        message.raw_input_contents.append(tensor.raw)
    for name in sorted(outputs):
        message.outputs.add(name=name)
    return message
