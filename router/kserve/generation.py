"""A language model by the ensemble's contract: what its inputs ask for, and what its answers cost."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tritonclient.grpc import service_pb2

from python_backend.wire import codec
from python_backend.wire.errors import InflightError
from python_backend.wire.tensors import ENSEMBLE
from python_backend.wire.tiers import Tier
from router.core.answer_text import Answered
from router.core.generation import FINISH_REASONS, MAX_NEW_TOKENS, GenerationCall, read_to_the_end
from router.core.record import Record, new_request_id
from router.kserve.answers import (
    FILTERED,
    Answer,
    GuardedText,
    Texts,
    check_prompts,
    number,
    pick,
    read_outputs,
)
from router.kserve.offers import EMPTY_FINAL, TIER, Asked, Delivery, Offer
from router.kserve.tensors import MAX_ROWS, Value, Values, by_name, refuse
from router.request.repetition import StopWatch
from router.request.text import need_of
from router.routing.models import Served, ServedModel
from router.triton.messages import STOP_WORDS, is_final, read_delta

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from router.admission.demand import Need
    from router.core.generation import RawGeneration
    from router.request.permit import Permit, Stoppable
    from router.safety.guard import Safety

MAX_SEQUENCES = 64
# Each is tokenized by itself, and the prompts of others wait meanwhile.
_MOST_WORDS = 2048
# What other servers of the contract have too, and why an answer ended; the rest is between router and engine.
INPUTS = by_name(tensor for tensor in ENSEMBLE.inputs if not tensor.extension)
OUTPUTS = by_name(
    tensor for tensor in ENSEMBLE.outputs if not tensor.extension or tensor.name == "finish_reason"
)
_PERFORMANCE = frozenset(
    name
    for name in OUTPUTS
    if name.startswith(("kv_cache_", "total_", "acceptance_")) or name.endswith("_time_ns")
)
# The flags that the router sets for its own account, and the outputs that come of them.
_ACCOUNT = {
    "return_num_input_tokens": frozenset({"num_input_tokens"}),
    "return_num_output_tokens": frozenset({"num_output_tokens"}),
    "return_perf_metrics": _PERFORMANCE,
}
# Outputs that are as long as a prompt or an answer, by what asks for them.
_UNEVEN = {
    "return_log_probs": "output_log_probs",
    "return_context_logits": "context_logits",
    "return_generation_logits": "generation_logits",
}


def generation_offer(served: ServedModel) -> Offer:
    job = partial(GenerationJob, served)
    return Offer(served, INPUTS, OUTPUTS, MAX_ROWS, True, job, platform="ensemble", is_language_model=True)


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
        self._last_of: dict[tuple[int, int], float] = {}  # rows and sequences, when each was last heard of

    async def check(self, safety: Safety) -> None:
        name = self.served.name
        self._guarded = GuardedText(safety, name)
        await check_prompts(safety, name, self._inputs, sum(sequences_of(self._inputs)))

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
        outputs = self._guarded.let(outputs, final)
        if self._guarded.tripped:
            self._record.finish_reason, final = FILTERED, True
        if self._heard is not None:
            self._heard.add(row, sequence, outputs)
        return Answer(pick(outputs, self._shown), final, row, sequence)

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


def complete(values: Values, whole: bool) -> Values:
    """The inputs that are sent: the client's, with what the router needs to know and Triton to batch."""
    rows = values["text_input"].rows
    _check_amounts(values)
    sent = dict(values)
    counts = [min(count, MAX_NEW_TOKENS) for count in values["max_tokens"].elements]
    sent["max_tokens"] = _each(counts, "INT32")
    sent["stop_words"] = _padded(values.get("stop_words"), rows)
    for name in _ACCOUNT:
        sent[name] = _each([True] * rows)
    if whole:
        sent["stream"] = _each([False] * rows)
    if "exclude_input_in_output" not in sent:
        sent["exclude_input_in_output"] = _each([False] * rows)
    return {name: sent[name] for name in INPUTS if name in sent}


def _check_amounts(values: Values) -> None:
    for name in ("stop_words", "bad_words"):
        if name in values and len(values[name].elements) > _MOST_WORDS:
            found = f"{len(values[name].elements)} words"
            raise refuse(f"input '{name}' has {found}; allowed: up to {_MOST_WORDS} in all rows", name)
    if min(values["max_tokens"].elements) < 1:
        raise refuse(f"input 'max_tokens': allowed are 1 to {MAX_NEW_TOKENS}", "max_tokens")
    sequences = sequences_of(values)
    if min(sequences) < 1 or sum(sequences) > MAX_SEQUENCES:
        allowed = f"1 and more, up to {MAX_SEQUENCES} of all rows together"
        raise refuse(f"input 'num_return_sequences': allowed are {allowed}", "num_return_sequences")


def sequences_of(values: Values) -> list[int]:
    given = values.get("num_return_sequences")
    return [1] * values["text_input"].rows if given is None else given.elements


def _each(elements: list[Any], dtype: str = "BOOL") -> Value:
    return Value(dtype, (len(elements), 1), elements)


def _padded(words: Value | None, rows: int) -> Value:
    """Triton batches only requests of the same shapes, so there are always so many words; empty ones pass."""
    found = [[]] * rows if words is None else [words.row(index) for index in range(rows)]
    width = -(-max(len(found[0]), 1) // STOP_WORDS) * STOP_WORDS
    elements = [word for row in found for word in (*row, *[b""] * (width - len(row)))]
    return Value("BYTES", (rows, width), elements)


def check_joinable(values: Values, shown: frozenset[str]) -> None:
    """One response holds all rows only where they have one shape."""
    if sum(sequences_of(values)) > 1:
        for flag, name in _UNEVEN.items():
            if name in shown and flag in values and any(values[flag].elements):
                raise refuse(f"output '{name}' has another shape in each row: ask for it in a stream", name)


def need(values: Values, context_tokens: int) -> Need:
    calls = []
    for text, most, sequences in zip(
        values["text_input"].elements, values["max_tokens"].elements, sequences_of(values), strict=True
    ):
        prompt = text.decode()
        for number_of_it in range(sequences):
            shares = number_of_it > 0
            calls.append(
                GenerationCall(request_id="", prompt=prompt, max_tokens=most, seed=0, shares_prompt=shares)
            )
    return need_of(calls, context_tokens)


def echoes(values: Values) -> list[bool]:
    """Of each row, whether its output begins with the prompt and counts it."""
    excluded = values["exclude_input_in_output"].elements
    return [not (out or stream) for out, stream in zip(excluded, streamed(values), strict=True)]


def streamed(values: Values) -> list[bool]:
    """Of each row, whether its output comes token by token."""
    return values["stream"].elements if "stream" in values else [False] * values["text_input"].rows


def shown_outputs(values: Values, asked: frozenset[str]) -> frozenset[str]:
    """What the client asked for by name, or else all that Triton itself would send it."""
    if asked:
        return asked
    wanted = [flag for flag in _ACCOUNT if flag in values and any(values[flag].elements)]
    hidden = frozenset().union(*(names for flag, names in _ACCOUNT.items() if flag not in wanted))
    return frozenset(OUTPUTS) - hidden


def build(values: Values, request_id: str, tenant: str) -> Any:
    """Without the model's name, which the pipeline fills in."""
    message = service_pb2.ModelInferRequest(id=request_id)
    message.parameters[EMPTY_FINAL].bool_param = True
    message.parameters["tenant"].string_param = tenant
    for name, value in values.items():
        message.inputs.add(name=name, datatype=value.dtype, shape=value.shape)
        message.raw_input_contents.append(codec.encode(value.dtype, value.elements))
    return message
