"""Generated text, from the calls that a body makes to the last byte of the answer over HTTP."""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier, tier_named
from router.admission.demand import Need
from router.core.answer_text import Answered
from router.core.generation import FINISH_REASONS
from router.core.record import new_request_id
from router.request.choice import Choice
from router.request.errors import write_error
from router.request.repetition import text_of, times_together
from router.routing.models import ServedModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from router.core.generation import GenerationCall
    from router.core.messages import ToolCall
    from router.core.record import Record
    from router.http.exchange import Exchange, Headers
    from router.request.choice import AnswerReader, TokenLog
    from router.request.permit import Permit, Stoppable
    from router.routing.models import Served
    from router.safety.guard import Safety

# Triton keeps about half a kilobyte for each token until the stream ends, and cannot be told to wait.
_MOST_TOKENS_BEHIND = 16_000
_LEAST_PATIENCE_S = 1.0
# Proxies close a connection on which nothing came for a minute, some sooner.
_KEEP_ALIVE_S = 10.0
_GOOD_ENDS = frozenset({*FINISH_REASONS.values(), "tool_calls"})
_JSON = ("content-type", "application/json")


class Dialect(Protocol):
    """How an answer is written: whole, or in events.

    `headers` are those of the latter, and `silence` is what may come where nothing is to be said.
    """

    @property
    def headers(self) -> Headers: ...
    @property
    def silence(self) -> bytes: ...
    def whole(self, choices: Sequence[Choice], texts: Sequence[str]) -> bytes: ...
    def opening(self, choices: int) -> bytes: ...
    def text_event(self, index: int, text: str) -> bytes: ...
    def logged_event(self, index: int, text: str, log: TokenLog) -> bytes: ...
    def thought_event(self, index: int, text: str) -> bytes: ...
    def call_event(self, index: int, number: int, call: ToolCall) -> bytes: ...
    def closing(self, choices: Sequence[Choice]) -> bytes: ...


def need_of(calls: Sequence[GenerationCall], context_tokens: int) -> Need:
    """What to reserve: the prompt as far as its length tells, and all that may be generated after it."""
    prompt = completion = 0
    for call in calls:
        size = min(call.most_prompt_tokens, context_tokens)
        if not call.shares_prompt:
            prompt += size
        completion += min(call.max_tokens, context_tokens - size)
    return Need(prompt, completion, len(calls))


def patience_s(tokens: int, lasted_s: float) -> float:
    """How long a client may stop reading an answer that has come to so many tokens in this time."""
    return max(_LEAST_PATIENCE_S, _MOST_TOKENS_BEHIND * lasted_s / max(1, tokens))


def patience_with(record: Record, now_s: float) -> float:
    return patience_s(record.completion_tokens, now_s - (record.first_token_s or now_s))


class TextJob:
    """Answers to one or several prompts, written in one dialect."""

    def __init__(
        self,
        exchange: Exchange,
        record: Record,
        served: ServedModel,
        calls: Sequence[GenerationCall],
        dialect: Dialect,
        stream: bool,
        new_reader: Callable[[], AnswerReader] | None = None,
    ) -> None:
        if not record.is_tier_given:
            record.tier = Tier.STANDARD if calls[0].tier is None else tier_named(calls[0].tier)
        self.served = served
        self.need = need_of(calls, served.context_tokens)
        self._exchange = exchange
        self._record = record
        self._calls = calls
        self._dialect = dialect
        self._streams = stream
        self._new_reader = new_reader
        self._safety: Safety | None = None
        self._keeps = False
        self._choices: list[Choice] = []
        self._texts: list[list[str]] = []
        self._is_begun = False
        self._pieces = 0
        self._alive: asyncio.TimerHandle | None = None
        self._told_calls: dict[int, int] = {}

    def choices(self) -> Sequence[Choice]:
        """Those that run, or have ended."""
        return self._choices

    async def check(self, safety: Safety) -> None:
        self._safety = safety
        await safety.admit_calls(self.served.name, self._calls, self._record.tenant)

    async def run(self, permit: Permit) -> None:
        record = self._record
        record.dispatched_s = time.monotonic()
        pipeline, journal = self.served.pipeline, record.journal
        tier = None if record.tier is Tier.STANDARD else record.tier.label
        weight = permit.weight
        deadline_s, trace = record.deadline_s, record.trace
        # The calls of one request are alike.
        is_usual = not weight and trace is None and self._calls[0].tier == tier and deadline_s == inf
        for index, asked in enumerate(self._calls):
            call = asked
            if not is_usual:
                more = {"tier": tier, "weight": weight, "trace": trace, "deadline_s": deadline_s}
                call = msgspec.structs.replace(asked, **more)
            generation = (
                pipeline.generate(call) if journal is None else journal.generate(pipeline, index, call)
            )
            permit.attach(generation)
            reader = None if self._new_reader is None else self._new_reader()
            guard = thought_guard = None
            if self._safety is not None:
                guard = self._safety.guard(self.served.name)
                thought_guard = None if reader is None else self._safety.guard(self.served.name)
            self._choices.append(
                Choice(index, call, generation, permit, reader, guard, self._keeps, thought_guard)
            )
        tell: Callable[[Choice, str], Awaitable[None] | None] = self._send
        if self._streams:
            self._exchange.set_patience(lambda: patience_with(record, time.monotonic()))
            loop = asyncio.get_running_loop()
            self._alive = loop.call_later(_KEEP_ALIVE_S, self._keep_alive, 0)
        else:
            tell, self._texts = self._collect, [[] for _ in self._choices]
        try:
            if len(self._choices) == 1:
                # A task of its own: a token then wakes that alone, not all callers up to the connection.
                await asyncio.get_running_loop().create_task(self._choices[0].each(tell))
            else:
                await self._deliver_together(permit, tell)
        finally:
            if self._alive is not None:
                self._alive.cancel()
        permit.finished()
        if self._streams:
            self._exchange.end(self._dialect.closing(self._choices))
        else:
            whole = self._dialect.whole(self._choices, ["".join(pieces) for pieces in self._texts])
            self._exchange.respond(200, whole, [_JSON, *record.headers()])

    def _collect(self, choice: Choice, piece: str) -> None:
        self._texts[choice.index].append(piece)

    def _send(self, choice: Choice, piece: str) -> Awaitable[None] | None:
        """One piece as an event; an answer to be awaited where the client is slow to read."""
        dialect, data = self._dialect, b""
        self._pieces += 1
        if choice.is_read and (thoughts := choice.take_thoughts()):
            data = dialect.thought_event(choice.index, thoughts)
        if piece and choice.log is None:
            data += dialect.text_event(choice.index, piece)
        elif piece and choice.log is not None:
            data += dialect.logged_event(choice.index, piece, choice.log)
        if choice.is_read:
            data += self._new_calls(choice)
        if not self._is_begun:  # not earlier: until the first token an error can still have a status
            self._is_begun = True
            self._exchange.start(200, [*dialect.headers, *self._record.headers()])
            data = dialect.opening(len(self._choices)) + data
        return self._exchange.send(data) if data else None

    def _keep_alive(self, told: int) -> None:
        """Where nothing came for a while: answers may be paused, and no proxy is to cut them."""
        if self._is_begun and self._pieces == told and not self._exchange.gone:
            self._exchange.fill_silence(self._dialect.silence)
        loop = asyncio.get_running_loop()
        self._alive = loop.call_later(_KEEP_ALIVE_S, self._keep_alive, self._pieces)

    def _new_calls(self, choice: Choice) -> bytes:
        """Events of the calls that became whole since the last piece."""
        index, calls = choice.index, choice.tool_calls
        new = range(self._told_calls.get(index, 0), len(calls))
        self._told_calls[index] = len(calls)
        return b"".join(self._dialect.call_event(index, number, calls[number]) for number in new)

    async def _deliver_together(
        self, permit: Permit, tell: Callable[[Choice, str], Awaitable[None] | None]
    ) -> None:
        """All choices at once, each in a task of its own; when one fails, the others are cut."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(choice.each(tell)) for choice in self._choices]
        try:
            await asyncio.gather(*tasks)
        except InflightError as error:
            permit.cut(error)
            raise
        finally:
            await asyncio.gather(*tasks, return_exceptions=True)
            tasks.clear()  # a failed one holds its error, which holds this frame

    def fail(self, error: InflightError) -> None:
        write_error(self._exchange, self._record, error)

    async def settle(self) -> None:
        for choice in self._choices:
            await choice.settle()

    # For observers

    def keep(self) -> None:
        self._keeps = True

    def prompts(self) -> Sequence[str]:
        return [text for call in self._calls if not call.shares_prompt for text in call.logged_texts]

    def told(self) -> Sequence[str]:
        return [choice.told for choice in self._choices]

    def answered(self) -> Answered | None:
        is_whole = self._choices and all(choice.finish_reason in _GOOD_ENDS for choice in self._choices)
        return Answered(tuple(self.told())) if is_whole else None

    def repeat(
        self, served: Served, attach: Callable[[Stoppable], None]
    ) -> Coroutine[Any, Any, Answered] | None:
        return self._repeat(served, attach) if isinstance(served, ServedModel) else None

    async def _repeat(self, served: ServedModel, attach: Callable[[Stoppable], None]) -> Answered:
        asked = []
        for call in self._calls:
            request_id = new_request_id("shadow")
            again = msgspec.structs.replace(
                call, request_id=request_id, tier=Tier.BATCH.label, returns_token_ids=None
            )
            generation = served.pipeline.generate(again)
            attach(generation)
            asked.append(text_of(again, generation, None if self._new_reader is None else self._new_reader()))
        texts, times = zip(*await asyncio.gather(*asked), strict=True)
        return Answered(texts, times=times_together(times))
