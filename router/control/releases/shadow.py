"""Shadowing: a second release gets some of the requests too, and its answers are compared and dropped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.errors import InflightError
from router.control.releases.comparison import Comparison
from router.control.releases.comparison import likeness as likeness_of
from router.core.answer_text import Answered

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from router.admission.gates import Gates
    from router.control.releases.shadow_figures import ShadowRecorder
    from router.core.answer_text import AnswerTimes
    from router.core.record import Record
    from router.request.answer import Job
    from router.request.permit import Permits, Stoppable
    from router.routing.models import Registry

log = logging.getLogger(__name__)


class ShadowObserver(Protocol):
    """Counts what comes of shadowed requests."""

    def ended(self, outcome: str, model: str, release: str) -> None:
        """equal, different, failed, dropped under load, or alone: without an original to compare with."""

    def compared(self, model: str, release: str, likeness: float, took_s: float) -> None:
        """Of an answer that came, equal or not."""


class Mirrored(Protocol):
    """Counts copies among what the canary of a rollout was asked."""

    def copied(
        self, record: Record, version: int, times: AnswerTimes | None, error: Exception | None
    ) -> None:
        """One that has ended; `times` where it was a text."""


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    """Beyond either number a request is not shadowed, nor while requests queue: clients come first."""

    most_at_once: int = 4
    most_open: int = 64
    timeout_s: float = 300.0
    most_kept: int = 100


class ShadowRun:
    """One request at its shadow; `ended` is told what the client got, once."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.began_s = time.monotonic()
        self.original: asyncio.Future[tuple[Answered, float] | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._work: list[Stoppable] = []

    @property
    def is_alone(self) -> bool:
        """Whether there is no original to compare with."""
        return self.original.done() and self.original.result() is None

    def attach(self, work: Stoppable) -> None:
        self._work.append(work)
        if self.is_alone:
            work.stop()

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
    """Hears of shadowed requests alone: one costs it the start of a task."""

    def __init__(
        self,
        models: Registry,
        permits: Permits,
        observer: ShadowObserver,
        settings: ShadowSettings | None = None,
        clock: Callable[[], float] = time.time,
        recorder: ShadowRecorder | None = None,
        gates: Gates | None = None,
        mirrored: Mirrored | None = None,
    ) -> None:
        self.recorder = recorder
        self._mirrored = mirrored
        self._next_copy_s: dict[str, float] = {}
        self._gates = gates
        self._models = models
        self._permits = permits
        self._settings = settings or ShadowSettings()
        self._clock = clock
        self._in_flight: dict[asyncio.Task[None], ShadowRun] = {}
        self._runs: dict[Job, ShadowRun] = {}
        self._kept: deque[Comparison] = deque(maxlen=self._settings.most_kept)
        self._observer = observer

    @property
    def newest(self) -> list[Comparison]:
        """The last ones, the newest first."""
        return list(reversed(self._kept))

    hears_begin = True

    def begun(self, job: Job, record: Record) -> None:
        """For a request that was admitted; returns at once."""
        is_mirrored, record.is_mirrored = record.is_mirrored, False
        served = self._models.shadow_of(record)
        if served is None or (is_mirrored and not self._is_copys_turn(record.model)):
            return
        if not self._has_room(record, served.version):
            return
        run = ShadowRun(record)
        work = job.repeat(served, run.attach)
        if work is None:
            return
        record.is_mirrored = is_mirrored
        job.keep()
        self._runs[job] = run
        task = asyncio.get_running_loop().create_task(self._compare(run, served.version, work))
        self._in_flight[task] = run
        task.add_done_callback(lambda done: self._in_flight.pop(done, None))

    def ended(self, job: Job, record: Record, cause: BaseException | None) -> None:
        """With what the client got, where all of it came; else there is nothing to compare."""
        if (run := self._runs.pop(job, None)) is not None:
            run.ended(job.answered())

    async def close(self) -> None:
        for task, run in list(self._in_flight.items()):
            run.stop()
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)

    def _is_copys_turn(self, model: str) -> bool:
        now_s, lineup = time.monotonic(), self._models.lineups.get(model)
        per_s = 0.0 if lineup is None else lineup.split.mirror_per_s
        if not per_s or now_s < self._next_copy_s.get(model, 0.0):
            return False
        self._next_copy_s[model] = now_s + 1 / per_s
        return True

    def _has_room(self, record: Record, version: int) -> bool:
        limits = self._settings
        has_room = len(self._in_flight) < limits.most_at_once and self._permits.open_count <= limits.most_open
        if has_room and self._gates is not None:
            has_room = self._gates.has_room(record.model, record.model_version, str(version))
        if not has_room:
            self._count("dropped", record, version)
        return has_room

    async def _compare(self, run: ShadowRun, version: int, work: Coroutine[None, None, Answered]) -> None:
        error, answered = "", Answered()
        cause: Exception | None = None
        try:
            answered = await asyncio.wait_for(work, self._settings.timeout_s)
        except asyncio.TimeoutError as failure:
            error, cause = f"no answer within {self._settings.timeout_s:g} s", failure
        except InflightError as failure:
            error, cause = failure.message, failure
        except Exception as failure:  # nobody else would hear of it
            log.exception("%s: the shadow request failed", run.record.request_id)
            error, cause = type(failure).__name__, failure
        finally:
            run.stop()  # where one part fails the others are of no use
        took_s = time.monotonic() - run.began_s
        # Not for ever, whatever became of the original.
        done, _ = await asyncio.wait([run.original], timeout=self._settings.timeout_s)
        original = run.original.result() if done else None
        if original is None:
            self._count("alone", run.record, version)
        else:
            self._note(run.record, version, (answered, took_s), original, error)
            if run.record.is_mirrored and self._mirrored is not None:
                self._mirrored.copied(run.record, version, answered.times, cause)

    def _note(
        self,
        record: Record,
        version: int,
        shadow: tuple[Answered, float],
        original: tuple[Answered, float],
        error: str,
    ) -> None:
        (answered, shadow_took_s), (expected, took_s) = shadow, original
        likeness = 0.0 if error else likeness_of(expected, answered)
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
