"""A language model by the ensemble's contract: what its inputs ask for, and what its answers cost."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier
from router.core.answer_text import Answered
from router.core.generation import FINISH_REASONS, read_to_the_end
from router.core.record import Record, new_request_id
from router.kserve.answers import (
    FILTERED,
    Answer,
    GuardedText,
    Output,
    Texts,
    check_prompts,
    number,
    pick,
    read_outputs,
)
from router.kserve.offers import Asked, Delivery, Offer, steps_of
from router.kserve.parameters import TIER
from router.kserve.prompts import (
    INPUTS,
    NO_FIGURES,
    OUTPUTS,
    PERFORMANCE,
    build,
    check_joinable,
    complete,
    echoes,
    need,
    sequences_of,
    shown_outputs,
    streamed,
)
from router.kserve.tensors import MAX_ROWS
from router.request.repetition import StopWatch
from router.routing.models import Served, ServedModel
from router.triton.messages import is_final, read_delta
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from router.core.generation import RawGeneration
    from router.request.permit import Permit, Stoppable
    from router.safety.guard import Safety


def generation_offer(served: ServedModel) -> Offer:
    job = partial(GenerationJob, served)
    steps = steps_of(served.name, served.version, served.triton_name)
    return Offer(served, INPUTS, OUTPUTS, MAX_ROWS, True, job, platform="ensemble", steps=steps)


class GenerationJob:
    """One request to a language model, from its checked inputs to its last response."""

    def __init__(
        self, served: ServedModel, asked: Asked, record: Record, whole: bool, delivery: Delivery
    ) -> None:
        self.served = served
        self._record = record
        self._delivery = delivery
        self._inputs = complete(asked.values, whole)
        self.need = need(self._inputs, served.context_tokens)
        self._shown = shown_outputs(asked.values, asked.outputs)
        self._echoes = echoes(self._inputs)
        if whole:
            check_joinable(self._inputs, self._shown)
        self._guarded = GuardedText(None, served.name)
        self._request = build(self._inputs, record.request_id, record.tenant)
        for name, value in asked.parameters.to_model.items():
            field = "bool_param" if isinstance(value, bool) else "string_param"
            setattr(self._request.parameters[name], field, value)
        if record.tier is not Tier.STANDARD:
            self._request.parameters[TIER].string_param = record.tier.label
        if record.trace is not None:
            record.trace.tell(self._request.parameters)
        self._generation: RawGeneration | None = None
        self._heard: Texts | None = None
        self._is_whole = False
        self._counted_rows: set[int] = set()
        self._last_s = 0.0
        self._streamed = streamed(self._inputs)
        self._figures: dict[tuple[int, int], dict[str, Output]] | None = None
        if "return_perf_metrics" in asked.values and any(asked.values["return_perf_metrics"].elements):
            self._figures = {}
        self._last_of: dict[tuple[int, int], float] = {}  # rows and sequences, when each was last heard of

    async def check(self, safety: Safety) -> None:
        name = self.served.name
        self._guarded = GuardedText(safety, name)
        await check_prompts(safety, name, self._inputs, sum(sequences_of(self._inputs)), self._record.tenant)

    async def run(self, permit: Permit) -> None:
        if permit.weight:
            self._request.parameters["inflight_weight"].double_param = permit.weight
        self._generation = self.served.pipeline.relay(self._request, self._record.trace)
        permit.attach(self._generation)
        self._record.dispatched_s = time.monotonic()
        try:
            async for response in self._generation:
                if permit.cut_by is not None:
                    continue  # the engine was told to stop: what still comes is for nobody
                answer = self._read(response, permit)
                if self._last_of and self._record.first_token_s is not None:  # what comes whole tells nothing
                    permit.heard(self._record.first_token_s)
                if answer.final:
                    self._is_whole = not self._guarded.tripped
                    permit.finished()
                await self._delivery.take(answer)
                if self._guarded.tripped:
                    return
        except InflightError as error:
            permit.model_failed(error)
            raise

    def fail(self, error: InflightError) -> None:
        self._delivery.fail(error)

    def _read(self, response: Any, permit: Permit) -> Answer:
        outputs, final = read_outputs(OUTPUTS, response), is_final(response)
        row, sequence = number(outputs, "batch_index"), number(outputs, "sequence_index")
        if outputs:
            self._count(response, (row, sequence), permit)
            outputs = self._with_figures(outputs, (row, sequence))
        outputs = self._guarded.let(outputs, final)
        if self._guarded.tripped:
            self._record.finish_reason, final = FILTERED, True
        if self._heard is not None:
            self._heard.add(row, sequence, outputs)
        return Answer(pick(outputs, self._shown), final, row, sequence)

    def _with_figures(self, outputs: dict[str, Output], which: tuple[int, int]) -> dict[str, Output]:
        """To a client that wants them, with each response, as NVIDIA's backend does it: 0 until known."""
        if self._figures is None:
            return outputs
        known = self._figures.setdefault(which, dict(NO_FIGURES))
        known.update({name: outputs[name] for name in PERFORMANCE if name in outputs})
        return {**outputs, **known}

    async def settle(self) -> None:
        """Reads to the end, so that the engine is known to be done; stopping what has ended does nothing."""
        if self._generation is not None:
            self._generation.stop()
            await read_to_the_end(self._generation)

    def _count(self, response: Any, which: tuple[int, int], permit: Permit) -> None:
        record, now_s, meter = self._record, time.monotonic(), permit.meter
        delta, row = read_delta(response), which[0]
        if self._streamed[row]:  # what comes whole tells nothing of its first token
            if not self._last_of:
                meter.first_token(now_s - record.arrived_s)
            elif delta.completion_tokens and which in self._last_of:
                tokens = delta.completion_tokens
                meter.inter_token((now_s - self._last_of[which]) / tokens, tokens)
            self._last_of[which] = now_s
        if row not in self._counted_rows:
            self._counted_rows.add(row)
            record.prompt_tokens += delta.prompt_tokens
            record.cached_tokens += min(delta.cached_tokens, delta.prompt_tokens)
        echoed = delta.prompt_tokens if self._echoes[row] else 0
        record.completion_tokens += max(delta.completion_tokens - echoed, 0)
        record.received_s = now_s
        record.engine = delta.engine or record.engine
        if delta.steps and record.trace is not None:
            record.trace.steps = delta.steps
        if delta.finish is not None:
            record.finish_reason = FINISH_REASONS.get(delta.finish, delta.finish)
        if self._last_s:
            meter.gap(now_s - self._last_s)
        else:
            meter.first_chunk(now_s - record.arrived_s)
            record.first_token_s = now_s
        self._last_s = now_s

    # For observers

    def keep(self) -> None:
        self._heard = Texts()

    def prompts(self) -> Sequence[str]:
        return [text.decode() for text in self._inputs["text_input"].elements]

    def told(self) -> Sequence[str]:
        return () if self._heard is None else self._heard.all()

    def answered(self) -> Answered | None:
        return Answered(tuple(self.told())) if self._is_whole and self._heard is not None else None

    def repeat(
        self, served: Served, attach: Callable[[Stoppable], None]
    ) -> Coroutine[Any, Any, Answered] | None:
        return self._repeat(served, attach) if isinstance(served, ServedModel) else None

    async def _repeat(self, served: ServedModel, attach: Callable[[Stoppable], None]) -> Answered:
        request = service_pb2.ModelInferRequest.FromString(self._request.SerializeToString())
        request.id = new_request_id("shadow")
        request.parameters[TIER].string_param = Tier.BATCH.label
        generation = served.pipeline.relay(request)
        attach(generation)
        texts, watch = Texts(), StopWatch()
        try:
            async for response in generation:
                outputs = read_outputs(OUTPUTS, response)
                if outputs:
                    watch.take(read_delta(response))
                texts.add(number(outputs, "batch_index"), number(outputs, "sequence_index"), outputs)
        finally:
            generation.stop()
            await read_to_the_end(generation)
        return Answered(tuple(texts.all()), times=watch.times())
