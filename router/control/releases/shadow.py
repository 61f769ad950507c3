"""A second release gets some of the requests too: its answers are compared with the clients', and dropped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.releases.comparison import Answered, Comparison
from router.core.embedding import ServedEmbedder
from router.core.generation import FINISH_REASONS, read_to_the_end
from router.core.record import new_request_id
from router.core.stop_text import StopScanner
from router.routing.models import ServedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from router.admission.gates import Gates
    from router.control.releases.shadow_figures import ShadowRecorder
    from router.core.embedding import EmbeddingAnswer, EmbeddingCall
    from router.core.generation import Generation, GenerationCall
    from router.core.record import Record
    from router.request.choice import Choice
    from router.request.ticket import TicketDesk
    from router.routing.models import Registry

log = logging.getLogger(__name__)

_TIER = "batch"
_GOOD_ENDS = frozenset({*FINISH_REASONS.values(), "tool_calls"})


class MadeCall(Protocol):
    """One call of a tool, as a model wrote it."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> str: ...


class ToolReader(Protocol):
    """Separates the calls of tools from the text of one answer."""

    @property
    def calls(self) -> Sequence[MadeCall]: ...
    def feed(self, chunk: str) -> str: ...
    def flush(self) -> str: ...


class ShadowObserver(Protocol):
    """Counts what comes of shadowed requests."""

    def ended(self, outcome: str, model: str, release: str) -> None:
        """equal, different, failed, dropped under load, or alone: without an original to compare with."""

    def compared(self, model: str, release: str, likeness: float, took_s: float) -> None:
        """Of an answer that came, equal or not."""


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    """Beyond either number a request is not shadowed, nor while somebody waits: the clients come first."""

    most_at_once: int = 4
    most_open: int = 64
    timeout_s: float = 300.0
    most_kept: int = 100


class ShadowRun:
    """One request at its shadow; whoever answers the client says how that ended, once."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.began_s = time.monotonic()
        self.original: asyncio.Future[tuple[Answered, float] | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._work: list[Generation] = []

    @property
    def is_alone(self) -> bool:
        """Whether there is no original to compare with."""
        return self.original.done() and self.original.result() is None

    def attach(self, work: Generation) -> None:
        self._work.append(work)
        if self.is_alone:
            work.stop()

    def choices_ended(self, choices: Sequence[Choice]) -> None:
        """With what the client got, where all of it came; else there is nothing to compare."""
        is_whole = all(choice.finish_reason in _GOOD_ENDS for choice in choices)
        self.ended(Answered(tuple(choice.told for choice in choices)) if is_whole else None)

    def vectors_ended(self, answers: Sequence[EmbeddingAnswer], calls: int) -> None:
        self.ended(_joined(answers) if len(answers) == calls else None)

    def ended(self, answered: Answered | None) -> None:
        if self.original.done():
            return
        took_s = time.monotonic() - self.began_s
        self.original.set_result(None if answered is None else (answered, took_s))
        if answered is None:
            self.stop()

    def stop(self) -> None:
        for each in self._work:
            each.stop()


class Shadows:
    """Costs a request that is not shadowed one lookup, and one that is the start of a task."""

    def __init__(
        self,
        registry: Registry,
        desk: TicketDesk,
        observer: ShadowObserver,
        settings: ShadowSettings | None = None,
        clock: Callable[[], float] = time.time,
        recorder: ShadowRecorder | None = None,
        gates: Gates | None = None,
    ) -> None:
        self.recorder = recorder
        self._gates = gates
        self._registry = registry
        self._desk = desk
        self._settings = settings or ShadowSettings()
        self._clock = clock
        self._under_way: dict[asyncio.Task[None], ShadowRun] = {}
        self._kept: deque[Comparison] = deque(maxlen=self._settings.most_kept)
        self._observer = observer

    @property
    def newest(self) -> list[Comparison]:
        """The last ones, the newest first."""
        return list(reversed(self._kept))

    def begin(
        self,
        record: Record,
        calls: Sequence[GenerationCall],
        new_reader: Callable[[], ToolReader] | None = None,
    ) -> ShadowRun | None:
        """For a request that was let in; returns at once."""
        served = self._registry.shadow_of(record)
        if not isinstance(served, ServedModel) or not self._has_room(record, served.version):
            return None
        run = ShadowRun(record)
        self._start(run, served.version, self._texts(run, served, calls, new_reader))
        return run

    def begin_vectors(self, record: Record, calls: Sequence[EmbeddingCall]) -> ShadowRun | None:
        served = self._registry.shadow_of(record)
        if not isinstance(served, ServedEmbedder) or not self._has_room(record, served.version):
            return None
        run = ShadowRun(record)
        self._start(run, served.version, self._vectors(run, served, calls))
        return run

    async def close(self) -> None:
        for task, run in list(self._under_way.items()):
            run.stop()
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _has_room(self, record: Record, version: int) -> bool:
        limits = self._settings
        has_room = len(self._under_way) < limits.most_at_once and self._desk.open_count <= limits.most_open
        if has_room and self._gates is not None:
            has_room = self._gates.has_room(record.model, record.model_version, str(version))
        if not has_room:
            self._count("dropped", record, version)
        return has_room

    def _start(self, run: ShadowRun, version: int, work: Coroutine[None, None, Answered]) -> None:
        task = asyncio.get_running_loop().create_task(self._compare(run, version, work))
        self._under_way[task] = run
        task.add_done_callback(lambda done: self._under_way.pop(done, None))

    async def _compare(self, run: ShadowRun, version: int, work: Coroutine[None, None, Answered]) -> None:
        error, answered = "", Answered()
        try:
            answered = await asyncio.wait_for(work, self._settings.timeout_s)
        except asyncio.TimeoutError:
            error = f"no answer within {self._settings.timeout_s:g} s"
        except InflightError as failure:
            error = failure.message
        except Exception as failure:  # nobody else would hear of it
            log.exception("%s in the shadow", run.record.request_id)
            error = type(failure).__name__
        took_s = time.monotonic() - run.began_s
        # Not for ever, whatever became of the one that should say how it ended.
        done, _ = await asyncio.wait([run.original], timeout=self._settings.timeout_s)
        original = run.original.result() if done else None
        if original is None:
            self._count("alone", run.record, version)
        else:
            self._note(run.record, version, (answered, took_s), original, error)

    def _note(
        self,
        record: Record,
        version: int,
        shadow: tuple[Answered, float],
        original: tuple[Answered, float],
        error: str,
    ) -> None:
        (answered, shadow_took_s), (expected, took_s) = shadow, original
        likeness = 0.0 if error else expected.likeness(answered)
        is_equal = not error and expected == answered
        sizes = (expected.size, answered.size)
        compared = Comparison(
            self._clock(),
            record.model,
            int(record.model_version),
            version,
            is_equal,
            likeness,
            *sizes,
            took_s,
            shadow_took_s,
            error,
        )
        self._kept.append(compared)
        if self.recorder is not None:
            self.recorder.add(compared)
        self._count("failed" if error else "equal" if is_equal else "different", record, version)
        if not error:
            self._observer.compared(record.model, str(version), likeness, shadow_took_s)

    def _count(self, outcome: str, record: Record, version: int) -> None:
        self._observer.ended(outcome, record.model, str(version))

    async def _texts(
        self,
        run: ShadowRun,
        served: ServedModel,
        calls: Sequence[GenerationCall],
        new_reader: Callable[[], ToolReader] | None,
    ) -> Answered:
        asked = []
        for call in calls:
            again = msgspec.structs.replace(call, request_id=new_request_id("shadow"), tier=_TIER)
            generation = served.pipeline.generate(again)
            run.attach(generation)
            asked.append(_text(again, generation, None if new_reader is None else new_reader()))
        try:
            return Answered(tuple(await asyncio.gather(*asked)))
        finally:
            run.stop()  # where one fails the others are of no use

    async def _vectors(
        self, run: ShadowRun, served: ServedEmbedder, calls: Sequence[EmbeddingCall]
    ) -> Answered:
        answers = []
        for call in calls:  # one after the other: there is no hurry
            if run.is_alone:
                break
            answers.append(await served.embedder.embed(call, new_request_id("shadow"), run.record.tenant))
        return _joined(answers)


def _joined(answers: Sequence[EmbeddingAnswer]) -> Answered:
    vectors = b"".join(answer.vectors for answer in answers)
    return Answered(vectors=vectors, rows=sum(len(answer.tokens) for answer in answers))


async def _text(call: GenerationCall, generation: Generation, tools: ToolReader | None) -> str:
    """All of an answer as the client would have seen it, calls of tools below it."""
    scanner = StopScanner(call.stop) if call.stop else None
    pieces = [call.prompt if call.echo and not call.engine_echoes else ""]
    try:
        async for delta in generation:
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
    if tools is None:
        return text
    text = tools.feed(text) + tools.flush()
    return "\n".join(filter(None, (text, *(f"{call.name} {call.arguments}" for call in tools.calls))))
