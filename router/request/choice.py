"""One generation on its way to the client."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.generation import FINISH_REASONS, read_to_the_end
from router.core.refusals import OPENING_CHARS
from router.core.stop_text import StopScanner
from router.request.errors import in_api_words

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from router.core.generation import Delta, Generation, GenerationCall, LoggedToken
    from router.openai.tools import ToolCall, ToolReader
    from router.request.ticket import Ticket
    from router.safety.guard import StreamGuard
    from router.telemetry.metrics import Metrics


class Choice:
    """One generation on its way to the client: cut at stop strings, counted, its end named."""

    def __init__(
        self,
        index: int,
        call: GenerationCall,
        generation: Generation,
        ticket: Ticket,
        metrics: Metrics,
        tools: ToolReader | None = None,
        guard: StreamGuard | None = None,
    ) -> None:
        self.index = index
        self.finish_reason = ""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.log = None if call.top_log_probs is None else TokenLog()
        self.heard: list[str] | None = None  # all that left, where somebody wants to keep it
        self._generation = generation
        self._ticket = ticket
        self._record = ticket.record
        self._scanner = StopScanner(call.stop) if call.stop else None
        self._echo = call.prompt if call.echo and not call.engine_echoes else ""
        self._echo_to_come = call.engine_echoes
        self._shares_prompt = call.shares_prompt
        self._tools = tools
        self._guard = guard
        if guard is not None:
            self._echo = guard.feed(self._echo)  # what is forbidden may begin in the prompt
        self._told_calls = self._judged_calls = 0
        self._metrics = metrics
        self._share = metrics.share(ticket.record)
        self._measured = metrics.objectives.series(ticket.record.model, ticket.record.tier)
        self._last_s = 0.0
        self._is_opening = index == 0 and ticket.record.rollout[0] is not None

    @property
    def tool_calls(self) -> Sequence[ToolCall]:
        """Those that were whole in the text so far."""
        return () if self._tools is None else self._tools.calls

    @property
    def told(self) -> str:
        """All that left, where it was heard: text, and calls below it."""
        calls = (f"{call.name} {call.arguments}" for call in self.tool_calls)
        return "\n".join(filter(None, ("".join(self.heard or ()), *calls)))

    def pieces(self) -> AsyncIterator[str]:
        """The text as it comes; the first piece tells of the first token and may be empty."""
        return self

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        """Not a generator: the event loop keeps a list of those."""
        if self.finish_reason:
            raise StopAsyncIteration
        try:
            async for delta in self._generation:
                if self._ticket.cut_by is not None:
                    continue  # the engine was told to stop: what still comes is for nobody
                first = self._count(delta)
                text = self._take(delta)
                if first:
                    text = self._echo + text
                if text or first or self._has_news():
                    if self.heard is not None:
                        self.heard.append(text)
                    if self._is_opening:
                        self._note_opening(text)
                    return text
                if self.finish_reason:
                    raise StopAsyncIteration
        except InflightError as error:
            if self._ticket.cut_by is None:
                self._metrics.triton_failed(error.kind, self._record.model)
                raise in_api_words(error) from None
        if self._ticket.cut_by is not None:
            raise self._ticket.cut_by.again()
        raise InflightError(ErrorKind.ENGINE_FAILED, "the answer was cut off")

    def _note_opening(self, text: str) -> None:
        """As much of the answer as tells whether it is a refusal."""
        record = self._record
        record.opening += text[: OPENING_CHARS - len(record.opening)]
        self._is_opening = len(record.opening) < OPENING_CHARS

    def _has_news(self) -> bool:
        """Whether a call became whole since this was asked last."""
        told, self._told_calls = self._told_calls, len(self.tool_calls)
        return told < self._told_calls

    async def settle(self) -> None:
        """Reads to the end of the stream, so that the engine is known to be done with the request."""
        if not self.finish_reason:
            self._generation.stop()
        await read_to_the_end(self._generation)

    def _take(self, delta: Delta) -> str:
        """The part of a delta that may leave; sets `finish_reason` when it is the last."""
        text = uncut = self._before_stop(delta)
        if self._tools is not None:
            text = self._without_calls(text, self._tools)
        if self._guard is not None:
            text = self._guarded(text, self._guard)
        if self.log is not None:
            self.log.add(delta.tokens)
            self.log.let(len(uncut), 0 if self._tools is None else self._tools.held)
        return text

    def _guarded(self, text: str, guard: StreamGuard) -> str:
        """Judges what the client sees: the text without the calls that stood in it, and each call."""
        text = guard.feed(text)
        if self._tools is not None:
            self._judge_calls(self._tools, guard)
        if self.finish_reason:
            text += guard.flush()
        if guard.tripped:
            self.finish_reason = self._record.finish_reason = "content_filter"
            self._generation.stop()
        return text

    def _judge_calls(self, tools: ToolReader, guard: StreamGuard) -> None:
        while self._judged_calls < len(tools.calls):
            if not guard.admits(tools.calls[self._judged_calls].read_out):
                tools.drop(self._judged_calls)
                return
            self._judged_calls += 1

    def _without_calls(self, text: str, tools: ToolReader) -> str:
        text = tools.feed(text)
        if self.finish_reason:
            text += tools.flush()
            if tools.calls and self.finish_reason == "stop":
                self.finish_reason = self._record.finish_reason = "tool_calls"
        return text

    def _before_stop(self, delta: Delta) -> str:
        text = delta.text
        if self._echo_to_come and delta.finish is None:
            self._echo_to_come = False
            return text
        if self._scanner is not None:
            text = self._scanner.feed(text)
            if self._scanner.stopped:
                self.finish_reason = self._record.finish_reason = "stop"
                self._generation.stop()
                return text
        if delta.finish is None:
            return text
        if delta.finish not in FINISH_REASONS:
            raise InflightError(ErrorKind.ENGINE_FAILED, "the answer was cut off")
        self.finish_reason = self._record.finish_reason = FINISH_REASONS[delta.finish]
        return text + self._scanner.flush() if self._scanner is not None else text

    def _count(self, delta: Delta) -> bool:
        """Adds up tokens and times; tells whether this is the first delta."""
        now_s = time.monotonic()
        first = self._last_s == 0.0
        self._record.received_s = now_s
        self._record.engine = delta.engine or self._record.engine
        if delta.steps and self.index == 0 and self._record.trace is not None:
            self._record.trace.steps = delta.steps
        if first:
            self._share.first_token.observe(now_s - self._record.arrived_s)
            if self._record.first_token_s is None:
                self._record.first_token_s = now_s
                self._measured.first_token.note(now_s - self._record.arrived_s)
            self._ticket.heard(now_s)
            if not self._shares_prompt:
                self.cached_tokens = min(delta.cached_tokens, delta.prompt_tokens)
                self._record.cached_tokens += self.cached_tokens
        else:
            self._share.between_chunks.observe(now_s - self._last_s)
            if count := delta.completion_tokens:  # some come together: each has its part of the time
                self._measured.inter_token.note((now_s - self._last_s) / count, count)
        self._last_s = now_s
        if self.prompt_tokens == 0 and not self._shares_prompt:
            self.prompt_tokens = delta.prompt_tokens
            self._record.prompt_tokens += delta.prompt_tokens
        if first and self._echo_to_come:
            return first  # the prompt's tokens, not the answer's
        self.completion_tokens += delta.completion_tokens
        self._record.completion_tokens += delta.completion_tokens
        return first


class TokenLog:
    """The tokens of one answer, each held until the first character that it has a part in has left.

    A token that is the first half of a character waits with that character. One without text of its own
    leaves with the next that has some.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, LoggedToken]] = deque()
        self._ready: list[tuple[int, LoggedToken]] = []
        self._known = 0
        self._passed = 0

    def add(self, tokens: Sequence[LoggedToken]) -> None:
        for token in tokens:
            self._waiting.append((self._known, token))
            self._known += token.characters

    def let(self, characters: int, held: int = 0) -> None:
        """So many more characters may leave, but for the last `held` of all so far."""
        self._passed += characters
        while self._waiting and self._waiting[0][0] < self._passed - held:
            self._ready.append(self._waiting.popleft())

    def take(self) -> list[tuple[int, LoggedToken]]:
        """Those that have left since this was asked last, each with where its text begins."""
        ready, self._ready = self._ready, []
        return ready
