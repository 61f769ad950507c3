"""Probes all releases on all Triton servers: what is dead gets no requests and is revived."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from router.control.health.reviver import Reviver, no_fault
from router.control.health.vital_signs import ProbeLimits
from router.control.health.watch import Watch
from router.core.rounds import every

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.control.health.reviver import FindFault
    from router.routing.replicas import Fleet, Replica


class Prober:
    """Every router has one and judges for itself; the one in control revives for all."""

    def __init__(
        self,
        fleet: Fleet,
        limits: ProbeLimits | None = None,
        can_revive: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        find_fault: FindFault = no_fault,
        on_death: Callable[[Replica, str], None] = lambda replica, why: None,
    ) -> None:
        self._on_death = on_death
        self._fleet = fleet
        self._limits = limits or ProbeLimits()
        self._clock = clock
        self._reviver = Reviver(can_revive, clock, find_fault)
        self._watches: dict[int, Watch] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            await every(self._limits.period_s, self.look, "the models could not be probed")
        finally:
            await self.close()

    async def look(self) -> None:
        """One round; returns before the answers are there."""
        await self._follow_fleet()
        for watch in self._watches.values():
            watch.probe()
            self._reviver.attend(watch)

    async def close(self) -> None:
        await self._reviver.close()
        for watch in self._watches.values():
            await watch.close()
        self._watches.clear()

    async def _follow_fleet(self) -> None:
        replicas = {id(each): each for group in self._fleet.sets.values() for each in group.replicas}
        for key in self._watches.keys() - replicas.keys():
            await self._watches.pop(key).close()
        for key in replicas.keys() - self._watches.keys():
            self._watches[key] = Watch(
                replicas[key], self._limits, self._reviver.attend, self._clock, self._on_death
            )
