"""The life of every request once it is understood: admit, dispatch, deliver, settle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_backend.wire.errors import InflightError
from router.request.aside import Aside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.record import Record
    from router.request.job import Job, Observer
    from router.request.permit import OnLeave, Permits
    from router.safety.guard import Safety


class Answers:
    """The one way from a door to a model. What watches or checks requests is handed in."""

    def __init__(
        self,
        permits: Permits,
        observers: Sequence[Observer] = (),
        checks: Sequence[Safety] = (),
        aside: Aside | None = None,
    ) -> None:
        self.permits = permits
        self.aside = aside or Aside()
        self._observers = tuple(observers)
        self._watching_begin = tuple(each for each in observers if each.hears_begin)
        self._checks = tuple(checks)

    async def answer(self, job: Job, record: Record, on_leave: OnLeave) -> None:
        """Raises what the client was told, or is to be told, where there is no whole answer."""
        for safety in self._checks:
            await job.check(safety)
        record.model = job.served.name
        permit = await self.permits.admit(record, job.need, on_leave)
        cause: BaseException | None = None
        try:
            for observer in self._watching_begin:
                observer.begun(job, record)
            await job.run(permit)
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
                cause = None  # it holds this frame
