"""A generation for nobody's eyes: its text as a client would have seen it, and how long it took."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.answer_text import AnswerTimes, StopScanner
from router.core.generation import FINISH_REASONS, read_to_the_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.generation import Delta, Generation, GenerationCall
    from router.core.stages import EngineTimes
    from router.request.choice import AnswerReader


async def text_of(
    call: GenerationCall, generation: Generation, tools: AnswerReader | None
) -> tuple[str, AnswerTimes | None]:
    """All of an answer as the client would have seen it, calls of tools below it."""
    scanner = StopScanner(call.stop) if call.stop else None
    pieces = [call.prompt if call.echo and not call.engine_echoes else ""]
    watch = StopWatch()
    try:
        async for delta in generation:
            watch.take(delta)
            pieces.append(delta.text if scanner is None else scanner.feed(delta.text))
            if scanner is not None and scanner.stopped:
                break
            if delta.finish is not None and delta.finish not in FINISH_REASONS:
                raise InflightError(ErrorKind.ENGINE_FAILED, "the answer was cut off")
        else:
            pieces.append("" if scanner is None else scanner.flush())
    finally:
        generation.stop()
        await read_to_the_end(generation)
    text = "".join(pieces)
    if tools is not None:
        text = tools.feed(text) + tools.flush()
        text = "\n".join(filter(None, (text, *(f"{call.name} {call.arguments}" for call in tools.calls))))
    return text, watch.times()


def times_together(times: Sequence[AnswerTimes | None]) -> AnswerTimes | None:
    """Of several answers to one request, counted as those of a client are."""
    known = [each for each in times if each is not None]
    if not known or len(known) < len(times):
        return None
    return AnswerTimes(
        min(each.first_token_s for each in known),
        max(each.decode_s for each in known),
        sum(each.tokens for each in known),
        sum(each.prompt_tokens for each in known),
    )


class StopWatch:
    """Times an answer that no permit is held for, as those of clients are timed."""

    def __init__(self) -> None:
        self._began_s = self._last_s = monotonic()
        self._first_s: float | None = None
        self._tokens = self._prompt_tokens = 0
        self._engine: EngineTimes | None = None

    def take(self, delta: Delta) -> None:
        self._last_s = monotonic()
        self._tokens += delta.completion_tokens
        self._prompt_tokens += delta.prompt_tokens - delta.cached_tokens
        self._engine = delta.engine or self._engine
        if self._first_s is None:
            self._first_s = self._last_s

    def times(self) -> AnswerTimes | None:
        first_s, engine = self._first_s, self._engine
        if first_s is None:
            return None
        decode_s = self._last_s - first_s if engine is None else engine.last_token_s - engine.first_token_s
        return AnswerTimes(first_s - self._began_s, decode_s, self._tokens, max(self._prompt_tokens, 0))

    def whole(self) -> AnswerTimes:
        """Of what has no tokens: all of it, in place of the first one."""
        return AnswerTimes(monotonic() - self._began_s, 0.0, 0, 0)
