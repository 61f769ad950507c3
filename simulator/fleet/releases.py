"""A release in a cell: its replicas are begun anew in turn, as a rolling update does it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from simulator.fleet.state import CLOSED, DRAINING, OPEN, STARTING

if TYPE_CHECKING:
    from simulator.fleet.state import Array


@dataclass(frozen=True)
class Release:
    """Of all cells alike; of each, `at_once` replicas are begun anew at a time."""

    at_s: float
    at_once: int = 1


class RollingRelease:
    """A replica that is to be begun anew takes no more requests; when it has ended those it had, it starts.

    One that is lost meanwhile is begun anew anyway.
    """

    def __init__(self, release: Release | None) -> None:
        self._release = release
        self._left: list[int] | None = None
        self.under_way: set[int] = set()
        self.done_s = inf

    def look(self, replicas: Array, now_s: float) -> list[int]:
        """Has the next ones drain; returns those that are empty and start now."""
        if self._release is None or now_s < self._release.at_s:
            return []
        phases = replicas["phase"]
        if self._left is None:
            self._left = [int(row) for row in np.flatnonzero(phases == OPEN)]
        empty = [row for row in sorted(self.under_way) if phases[row] == CLOSED]
        phases[empty] = STARTING
        self.under_way = {row for row in self.under_way if phases[row] in (DRAINING, STARTING)}
        while self._left and len(self.under_way) < self._release.at_once:
            row = self._left.pop(0)
            if phases[row] == OPEN:
                phases[row] = DRAINING if replicas["taken"][row] else CLOSED
                self.under_way.add(row)
        if not self._left and not self.under_way:
            self.done_s = min(self.done_s, now_s)
        return empty
