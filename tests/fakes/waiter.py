"""Stands in for a permit that waits for its turn."""

from __future__ import annotations

from python_backend.wire.errors import InflightError
from router.request.permit import Stoppable


class FakeWaiter:
    def __init__(self) -> None:
        self.cut_by: InflightError | None = None
        self._work: list[Stoppable] = []

    def attach(self, work: Stoppable) -> None:
        self._work.append(work)

    def cut(self, reason: InflightError) -> None:
        self.cut_by = reason
        for each in self._work:
            each.stop()
