"""One generation on its way to the client: cut at stop strings, counted, its end named."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.answer_text import OPENING_CHARS, StopScanner
from router.core.generation import FINISH_REASONS, read_to_the_end
from router.request.errors import in_api_words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from router.core.generation import Delta, Generation, GenerationCall, LoggedToken
    from router.core.messages import ToolCall
    from router.request.permit import Permit
    from router.safety.guard import StreamGuard

# The meter is told of so many gaps between chunks at once, and of the rest at the end.
_GAPS = 16


class AnswerReader(Protocol):
    """Finds thoughts and tool calls in the text of one answer, and takes them out of it."""

    @property
    def calls(self) -> Sequence[ToolCall]: ...
    @property
    def held(self) -> int:
        """How many characters it holds back."""

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is part of a thought."""

    def feed(self, text: str) -> str: ...
    def flush(self) -> str: ...
    def take_thoughts(self) -> str:
        """Those that were not taken yet."""

    def drop(self, first: int) -> None:
        """Calls from this one on are not told."""


class Choice:
    """One of the answers to a request. `keeps`: somebody wants all that left afterwards."""

    def __init__(
        self,
        index: int,
        call: GenerationCall,
        generation: Generation,
        permit: Permit,
        reader: AnswerReader | None = None,
        guard: StreamGuard | None = None,
        keeps: bool = False,
        thought_guard: StreamGuard | None = None,
    ) -> None:
        self.index = index
        self.finish_reason = ""
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = self.reasoning_tokens = 0
        self._thoughts: list[str] = []
        self._new_thoughts: list[str] = []
        self.log = None if call.top_log_probs is None else TokenLog()
        self.generation = generation
        self._heard: list[str] | None = [] if keeps else None
        self._permit = permit
        self._record = permit.record
        self._meter = permit.meter
        self._scanner = StopScanner(call.stop) if call.stop else None
        self.tells_ids = bool(call.returns_token_ids)
        self.prompt_token_ids: Sequence[int] = ()
        self._token_ids: list[int] = []
        self._echo_to_come = call.echo and call.engine_echoes
        self._echo = call.prompt if call.echo and not self._echo_to_come else ""
        self._shares_prompt = call.shares_prompt
        self._reader = reader
        self.is_read = reader is not None
        self._is_scoring = call.is_scoring
        self._guide_field = call.guide_field
        self._guard = guard
        self._thought_guard = thought_guard
        if guard is not None:
            self._echo = guard.feed(self._echo)  # what is forbidden may begin in the prompt
        self._told_calls = self._judged_calls = 0
        self._last_s = 0.0
        self._gaps: list[tuple[float, int]] = []
        self._is_opening = index == 0 and permit.record.rollout[0] is not None
        # Whether text leaves as it comes: nothing reads, holds back or keeps it.
        self._is_plain = not (
            self._scanner
            or reader
            or guard
            or keeps
            or self.log
            or self.tells_ids
            or self._is_opening
            or self._echo_to_come
            or call.is_scoring
        )

    @property
    def tool_calls(self) -> Sequence[ToolCall]:
        """Those that were whole in the text so far."""
        return () if self._reader is None else self._reader.calls

    @property
    def thoughts(self) -> str:
        """All that left so far."""
        return "".join([*self._thoughts, *self._new_thoughts])

    def take_thoughts(self) -> str:
        """Those that were not taken yet."""
        new, self._new_thoughts = self._new_thoughts, []
        self._thoughts += new
        return "".join(new)

    def take_token_ids(self) -> list[int]:
        """Those that were not taken yet."""
        taken, self._token_ids = self._token_ids, []
        return taken

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it."""
        return self._scanner.found if self._scanner is not None and self._scanner.stopped else None

    @property
    def told(self) -> str:
        """All that left, where it was kept: text, and calls below it."""
        calls = (f"{call.name} {call.arguments}" for call in self.tool_calls)
        return "\n".join(filter(None, ("".join(self._heard or ()), *calls)))

    async def each(self, tell: Callable[[Choice, str], Awaitable[None] | None]) -> None:
        """Tells of every piece that may leave; the first tells of the first token and may be empty."""
        permit = self._permit
        try:
            async for delta in self.generation:
                if permit.cut_by is not None:
                    continue  # the engine was told to stop: what still comes is for nobody
                text = self.take(delta)
                if text is not None and (waiting := tell(self, text)) is not None:
                    await waiting
                if self.finish_reason:
                    return
        except InflightError as error:
            permit.model_failed(error)
            if permit.cut_by is None:
                raise in_api_words(error, self._guide_field) from None
        finally:
            if self._gaps:
                self._meter.gaps(self._gaps)
                self._gaps = []
        if permit.cut_by is not None:
            raise permit.cut_by.again()
        raise InflightError(ErrorKind.ENGINE_FAILED, "the answer was cut off")

    async def settle(self) -> None:
        """Reads to the end of the stream, so that the engine is known to be done with the request."""
        if not self.finish_reason:
            self.generation.stop()
        await read_to_the_end(self.generation)

    def take(self, delta: Delta) -> str | None:
        """What may leave of it now, None for nothing; sets `finish_reason` with the last."""
        now_s = monotonic()
        record = self._record
        record.received_s = now_s
        count = delta.completion_tokens
        last_s, self._last_s = self._last_s, now_s
        if not last_s:
            return self._take_first(delta, now_s)
        self._gaps.append((now_s - last_s, count))
        if len(self._gaps) >= _GAPS:
            self._meter.gaps(self._gaps)
            self._gaps = []
        if not self.prompt_tokens and not self._shares_prompt:
            self.prompt_tokens = delta.prompt_tokens
            record.prompt_tokens += delta.prompt_tokens
        self.completion_tokens += count
        record.completion_tokens += count
        if self._is_plain and delta.finish is None:
            return delta.text or None
        if self.tells_ids:
            self._token_ids += delta.token_ids
        if self._reader is not None and self._reader.is_thinking:
            self.reasoning_tokens += count
        return self._leave(self._filtered(delta), is_first=False)

    def _take_first(self, delta: Delta, now_s: float) -> str | None:
        record = self._record
        took_s = now_s - record.arrived_s
        self._meter.first_chunk(took_s)
        if record.first_token_s is None:
            record.first_token_s = now_s
            self._meter.first_token(took_s)
        self._permit.heard(now_s)
        self.prompt_token_ids = delta.token_ids
        if not self._shares_prompt:
            self.prompt_tokens = delta.prompt_tokens
            self.cached_tokens = min(delta.cached_tokens, delta.prompt_tokens)
            record.prompt_tokens += delta.prompt_tokens
            record.cached_tokens += self.cached_tokens
        if not (self._echo_to_come or self._is_scoring):  # else these are not the answer's
            self.completion_tokens += delta.completion_tokens
            record.completion_tokens += delta.completion_tokens
            if self._reader is not None and self._reader.is_thinking:
                self.reasoning_tokens += delta.completion_tokens
        return self._leave(self._echo + self._filtered(delta), is_first=True)

    def _leave(self, text: str, is_first: bool) -> str | None:
        told, self._told_calls = self._told_calls, len(self.tool_calls)
        if not (text or is_first or told < self._told_calls or self._new_thoughts):
            return None
        if self._heard is not None:
            self._heard.append(text)
        if self._is_opening:  # as much of the answer as tells whether it is a refusal
            record = self._record
            record.opening += text[: OPENING_CHARS - len(record.opening)]
            self._is_opening = len(record.opening) < OPENING_CHARS
        return text

    def _filtered(self, delta: Delta) -> str:
        """The part of a delta that may leave; sets `finish_reason` when it is the last."""
        record = self._record
        if delta.engine is not None:
            record.engine = delta.engine
        if delta.steps and self.index == 0 and record.trace is not None:
            record.trace.steps = delta.steps
        text = uncut = self._before_stop(delta)
        if self._reader is not None:
            text = self._read(text, self._reader)
        if self._guard is not None:
            text = self._guarded(text, self._guard)
        if self.log is not None:
            self.log.add(delta.tokens)
            self.log.let(len(uncut), 0 if self._reader is None else self._reader.held)
        return text

    def _guarded(self, text: str, guard: StreamGuard) -> str:
        """Judges what the client sees: the text without the calls that stood in it, and each call."""
        text = guard.feed(text)
        if self._reader is not None:
            self._judge_calls(self._reader, guard)
        if self.finish_reason:
            text += guard.flush()
        if guard.tripped or (self._thought_guard is not None and self._thought_guard.tripped):
            self._end("content_filter")
            self.generation.stop()
        return text

    def _judge_calls(self, reader: AnswerReader, guard: StreamGuard) -> None:
        while self._judged_calls < len(reader.calls):
            if not guard.admits(reader.calls[self._judged_calls].read_out):
                reader.drop(self._judged_calls)
                return
            self._judged_calls += 1

    def _read(self, text: str, reader: AnswerReader) -> str:
        """What of it is said; thoughts and calls are noted."""
        text = reader.feed(text)
        if self.finish_reason:
            text += reader.flush()
            if reader.calls and self.finish_reason == "stop":
                self._end("tool_calls")
        thoughts = reader.take_thoughts()
        if (guard := self._thought_guard) is not None:
            thoughts = guard.feed(thoughts)
            # What is said ends a thought, which is then judged as a whole.
            thoughts += guard.flush() if not reader.is_thinking or self.finish_reason else ""
            text = "" if guard.tripped else text
        if thoughts:
            self._new_thoughts.append(thoughts)
        return text

    def _before_stop(self, delta: Delta) -> str:
        text = delta.text
        if self._echo_to_come and delta.finish is None:
            self._echo_to_come = False
            if self._is_scoring:
                self._end("length")
                self.generation.stop()
            return text
        if self._is_scoring:  # the prompt is known without the engine
            self._end("length")
            self.generation.stop()
            return ""
        if self._scanner is not None:
            text = self._scanner.feed(text)
            if self._scanner.stopped:
                self._end("stop")
                self.generation.stop()
                return text
        if delta.finish is None:
            return text
        if delta.finish not in FINISH_REASONS:
            raise InflightError(ErrorKind.ENGINE_FAILED, "the answer was cut off")
        self._end(FINISH_REASONS[delta.finish])
        return text + self._scanner.flush() if self._scanner is not None else text

    def _end(self, reason: str) -> None:
        self.finish_reason = self._record.finish_reason = reason


class TokenLog:
    """Log probabilities: the tokens of one answer, each held until its first character has left.

    None for text that never leaves, none missing for text that does. A token that is the first half of a
    character waits with that character. One without text of its own leaves with the next that has some.
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
