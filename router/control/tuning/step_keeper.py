"""Keeps the step limits of each engine in the store, for people who cannot ask an engine."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from router.control.recorder import repeat
from router.control.tuning.decisions import STEPS, TuningDecision, keep_decision
from router.control.tuning.step_limits import explained
from router.core.manifest import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.core.manifest import Manifest
    from router.routing.replicas import Fleet
    from router.store.database import StoreAccess

_EVERY_S = 5.0


class StepKeeper:
    """Of all routers the one in control writes; and only what has changed."""

    def __init__(
        self,
        fleet: Fleet,
        store: StoreAccess,
        in_control: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._in_control = in_control
        self._clock = clock
        self._kept: dict[str, dict[str, Any]] = {}

    async def run(self) -> None:
        """A task for as long as the router runs."""
        await repeat(self.keep, _EVERY_S, "the step limits of the engines could not be written")

    async def keep(self) -> None:
        if not self._in_control():
            self._kept.clear()
            return
        groups = [each for each in self._fleet.sets.values() if each.manifest.kind is Kind.TEXT]
        for name in self._kept.keys() - {each.manifest.name for each in groups}:
            del self._kept[name]
        for group in groups:
            engines = {
                replica.name: explained(replica.report)
                for replica in group.replicas
                if replica.report is not None
            }
            if engines and engines != self._kept.get(group.manifest.name):
                await self._store.write(partial(keep_decision, self._row(group.manifest, engines)))
                self._kept[group.manifest.name] = engines

    def _row(self, manifest: Manifest, engines: dict[str, dict[str, Any]]) -> TuningDecision:
        sentence = "; ".join(f"{name}: {each['sentence']}" for name, each in engines.items())
        return TuningDecision(
            self._clock(),
            manifest.model,
            manifest.version,
            manifest.engine,
            None,
            STEPS,
            sentence,
            {"engines": engines},
        )
