"""One request, understood and about to run; and who hears of it without having a say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from python_backend.wire.errors import InflightError
    from router.admission.demand import Need
    from router.core.answer_text import Answered
    from router.core.record import Record
    from router.request.permit import Permit, Stoppable
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
