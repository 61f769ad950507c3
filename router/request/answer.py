"""The life of every request once it is understood: admit, dispatch, deliver, settle; and who hears of it."""

from __future__ import annotations

from asyncio import sleep
from typing import TYPE_CHECKING, Any, Protocol

from python_backend.wire.errors import InflightError
from router.core.fair_pool import unless_left
from router.request.aside import Aside
from router.routing.models import ServedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from router.admission.demand import Need
    from router.core.answer_text import Answered
    from router.core.record import Record
    from router.request.permit import OnLeave, Permit, Permits, Stoppable
    from router.request.prompt_lengths import PromptLengths
    from router.routing.models import Served
    from router.safety.guard import Safety


class Job(Protocol):
    """What a request needs, and how it runs: text, embeddings and tensors alike."""

    @property
    def served(self) -> Served: ...
    @property
    def need(self) -> Need: ...

    async def check(self, safety: Safety) -> None:
        """Raises where a rule of the operator forbids it."""

    async def run(self, permit: Permit) -> None:
        """Dispatches it and delivers the answer. Raises InflightError where there is no whole one."""

    def fail(self, error: InflightError) -> None:
        """Tells the client, if it was not told yet."""

    async def settle(self) -> None:
        """Returns when the model is done with the request, however `run` ended."""

    # For observers

    def keep(self) -> None:
        """Before it runs: its answer is wanted afterwards."""

    def prompts(self) -> Sequence[str]:
        """What was asked in texts that may be logged."""

    def told(self) -> Sequence[str]:
        """What left in texts, whole or not, where it was kept."""

    def answered(self) -> Answered | None:
        """The whole answer, where there is one and it was kept."""

    def repeat(
        self, served: Served, attach: Callable[[Stoppable], None]
    ) -> Coroutine[Any, Any, Answered] | None:
        """Asks another release the same, for nobody's eyes; None where that one is of another kind."""


class Observer(Protocol):
    """Hears of every admitted request, on the event loop: returns at once and raises nothing."""

    @property
    def hears_begin(self) -> bool:
        """Whether `begun` says anything to it."""

    def begun(self, job: Job, record: Record) -> None:
        """It is about to be dispatched."""

    def ended(self, job: Job, record: Record, cause: BaseException | None) -> None:
        """The model is done with it; `cause` is why it did not finish."""


class Answers:
    """The one way from a door to a model. What watches or checks requests is handed in.

    `shadows` hears of those alone that another release gets too.

    Requests go in step: the way of one is more code than a processor keeps at hand, so each waits between two
    stages (`sleep(0)`) until the others that are ready have come as far, and a stage is fetched once for all.
    """

    def __init__(
        self,
        permits: Permits,
        observers: Sequence[Observer] = (),
        checks: Sequence[Safety] = (),
        shadows: Observer | None = None,
        lengths: PromptLengths | None = None,
        aside: Aside | None = None,
    ) -> None:
        self.permits = permits
        self.aside = aside or Aside()
        self._observers = tuple(observers)
        self._watching_begin = tuple(each for each in observers if each.hears_begin)
        self._checks = tuple(checks)
        self._shadows = shadows
        self._lengths = lengths

    async def _check(self, job: Job) -> None:
        for safety in self._checks:
            await job.check(safety)

    async def _check_length(self, job: Job, served: ServedModel, record: Record, on_leave: OnLeave) -> None:
        if self._lengths is not None:
            await self.permits.foresee(record, served.name, 1)
            await unless_left(self._lengths.check(served, job.prompts(), record.tenant), on_leave)

    async def answer(self, job: Job, record: Record, on_leave: OnLeave) -> None:
        """Raises what the client was told, or is to be told, where there is no whole answer."""
        await sleep(0)
        if self._checks:
            await self.permits.foresee(record, job.served.name, 1)
            await unless_left(self._check(job), on_leave)
        record.model = job.served.name
        shadows = None if record.shadow is None else self._shadows
        served = job.served
        # What may be too long reserves the whole context.
        if type(served) is ServedModel and job.need.prompt_tokens >= served.context_tokens:
            await self._check_length(job, served, record, on_leave)
        judging = record.journal if record.journal is not None and record.journal.judges else None
        if judging is not None:
            job.keep()
        permit = await self.permits.admit(record, job.need, on_leave)
        cause: BaseException | None = None
        try:
            for observer in self._watching_begin:
                observer.begun(job, record)
            if shadows is not None:
                shadows.begun(job, record)
            await job.run(permit)
            await sleep(0)
            if permit.cut_by is not None:
                raise permit.cut_by.again()
        except InflightError as error:
            cause = permit.cut_by or error
            job.fail(cause)
            raise cause.again() from None
        except BaseException as error:
            cause = error
            raise
        finally:
            try:
                await job.settle()
            finally:
                permit.close(cause)
                for observer in self._observers:
                    observer.ended(job, record, cause)
                if shadows is not None:
                    shadows.ended(job, record, cause)
                cause = None  # it holds this frame
        if judging is not None and (answered := job.answered()) is not None:
            await judging.judge(job.prompts(), answered.texts)  # the model is free for others meanwhile
