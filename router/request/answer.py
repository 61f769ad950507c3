"""Carries an accepted request from its calls to its last byte."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier, tier_named
from router.admission.demand import Need
from router.http import sse
from router.openai.dialects import Dialect
from router.request.choice import Choice
from router.request.errors import write_error
from router.request.permit import admitted
from router.request.ticket import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from router.core.generation import GenerationCall
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.openai.tools import ToolReader
    from router.request.service import Service
    from router.request.ticket import Ticket
    from router.routing.models import ServedModel


# English text has about four characters a token; other scripts may have one.
_CHARS_PER_TOKEN = 3


def need_of(calls: Sequence[GenerationCall], context_tokens: int) -> Need:
    """What to reserve: the prompt as far as its length tells, and all that may be generated after it."""
    prompt = completion = 0
    for call in calls:
        size = prompt_size(call, context_tokens)
        if not call.shares_prompt:
            prompt += size
        completion += min(call.max_tokens, context_tokens - size)
    return Need(prompt, completion, len(calls))


def prompt_size(call: GenerationCall, context_tokens: int) -> int:
    if call.prompt_ids is not None:
        return min(len(call.prompt_ids), context_tokens)
    chars = len(call.prompt)
    tokens = chars // _CHARS_PER_TOKEN + 1 if call.prompt.isascii() else chars
    return min(tokens, context_tokens)


# Triton keeps about half a kilobyte for each token until the stream ends, and cannot be told to wait.
_MOST_TOKENS_BEHIND = 16_000
_LEAST_PATIENCE_S = 1.0


def patience_s(tokens: int, lasted_s: float) -> float:
    """How long a client may stop reading an answer that has come to so many tokens in this time."""
    return max(_LEAST_PATIENCE_S, _MOST_TOKENS_BEHIND * lasted_s / max(1, tokens))


def patience_with(record: Record, now_s: float) -> float:
    return patience_s(record.completion_tokens, now_s - (record.first_token_s or now_s))


def _addressed(calls: Sequence[GenerationCall], record: Record) -> Sequence[GenerationCall]:
    """With the tier in force, and the trace that they are part of."""
    tier, trace = record.tier, record.trace
    name = None if tier is Tier.STANDARD else tier.label
    if trace is None and all(call.tier == name for call in calls):
        return calls
    return [msgspec.structs.replace(call, tier=name, trace=trace) for call in calls]


async def answer(
    exchange: Exchange,
    record: Record,
    service: Service,
    model: ServedModel,
    calls: Sequence[GenerationCall],
    dialect: Dialect,
    stream: bool,
    new_reader: Callable[[], ToolReader] | None = None,
) -> None:
    """Admit, generate, deliver, settle: the whole life of a request once its body is understood."""
    record.ask_tier(tier_named(calls[0].tier))
    if service.safety is not None:
        await service.safety.admit_calls(model.name, calls)
    need = need_of(calls, model.context_tokens)
    async with admitted(service, record, model.name, need, exchange.on_disconnect) as ticket:
        choices = []
        shadow = None if service.shadows is None else service.shadows.begin(record, calls, new_reader)
        record.dispatched_s = time.monotonic()
        for index, call in enumerate(_addressed(calls, record)):
            generation = model.pipeline.generate(call)
            ticket.attach(generation)
            tools = None if new_reader is None else new_reader()
            guard = None if service.safety is None else service.safety.guard(model.name)
            choice = Choice(index, call, generation, ticket, service.metrics, tools, guard)
            choice.heard = None if service.prompt_log is None and shadow is None else []
            choices.append(choice)
        deliver = _deliver_stream if stream else _deliver_whole
        try:
            await deliver(exchange, record, ticket, choices, dialect)
        except InflightError as error:
            write_error(exchange, record, error)
            raise
        finally:
            if shadow is not None:
                shadow.choices_ended(choices)
            for choice in choices:
                await choice.settle()
            if service.prompt_log is not None:
                prompts = [call.prompt for call in calls if not call.shares_prompt]
                service.prompt_log.write(record, prompts, [choice.told for choice in choices])


async def _deliver_whole(
    exchange: Exchange, record: Record, ticket: Ticket, choices: Sequence[Choice], dialect: Dialect
) -> None:
    texts = [""] * len(choices)

    async def collect(choice: Choice) -> None:
        texts[choice.index] = "".join([piece async for piece in choice.pieces()])

    await _together(ticket, choices, collect)
    ticket.bill(Outcome.FINISHED)
    headers = [("content-type", "application/json"), *record.headers()]
    exchange.respond(200, dialect.whole(choices, texts), headers)


async def _deliver_stream(
    exchange: Exchange, record: Record, ticket: Ticket, choices: Sequence[Choice], dialect: Dialect
) -> None:
    async def relay(choice: Choice) -> None:
        told = 0
        async for piece in choice.pieces():
            data = b""
            if piece:
                data = (
                    dialect.text_event(choice.index, piece)
                    if choice.log is None
                    else dialect.logged_event(choice.index, piece, choice.log)
                )
            if len(calls := choice.tool_calls) > told:
                for number in range(told, len(calls)):
                    data += dialect.call_event(choice.index, number, calls[number])
                told = len(calls)
            if not exchange.started:  # not earlier: until the first token an error can still have a status
                exchange.start(200, [*sse.HEADERS, *record.headers()])
                data = dialect.opening(len(choices)) + data
            if data:
                await exchange.send(data)

    exchange.set_patience(lambda: patience_with(record, time.monotonic()))
    await _together(ticket, choices, relay)
    ticket.bill(Outcome.FINISHED)
    exchange.end(dialect.closing(choices))


async def _together(
    ticket: Ticket, choices: Sequence[Choice], deliver: Callable[[Choice], Coroutine[Any, Any, None]]
) -> None:
    """Delivers all choices at once; when one fails, the others are cut."""
    if len(choices) == 1:
        await deliver(choices[0])
        return
    tasks = [asyncio.ensure_future(deliver(choice)) for choice in choices]
    try:
        await asyncio.gather(*tasks)
    except InflightError as error:
        ticket.cut(error)
        raise
    finally:
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks.clear()  # a failed one holds its error, which holds this frame
