"""Writes what this router has measured of objectives to the store, for people and other routers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from router.control.objectives.monitor import WINDOW_S
from router.control.objectives.records import FRESH_S, figures_to_json
from router.control.objectives.standing import Figures
from router.control.recorder import Recorder
from router.core.objective import Metric
from router.store.schema import objective_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from python_backend.wire.tiers import Tier
    from router.control.objectives.monitor import ObjectiveMonitor
    from router.store.database import StoreAccess

_AGAIN_AFTER_S = FRESH_S / 3  # also what has not changed, or it would count as stale
_FORGET_AFTER_S = 3600.0

_Key = tuple[str, "Tier"]


class ObjectiveRecorder(Recorder):
    _what = "the measurements of the objectives"
    _every_s = 5.0

    def __init__(
        self,
        access: StoreAccess,
        monitor: ObjectiveMonitor,
        process: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(access, process)
        self._monitor = monitor
        self._clock = clock
        self._written: dict[_Key, tuple[float, Figures]] = {}

    async def write(self) -> None:
        now_s = self._clock()
        changed = {
            key: figures for key, figures in self._measured().items() if self._is_news(key, figures, now_s)
        }
        if not changed:
            return
        if await self._commit(lambda connection: self._put(connection, changed, now_s)):
            self._written.update({key: (now_s, figures) for key, figures in changed.items()})

    def _measured(self) -> dict[_Key, Figures]:
        return {
            (model, tier): Figures(
                {metric: series.of(metric).last(WINDOW_S).counts for metric in Metric},
                series.refused.last(WINDOW_S).samples,
            )
            for model, tier, series in self._monitor.all_series()
        }

    def _is_news(self, key: _Key, figures: Figures, now_s: float) -> bool:
        before = self._written.get(key)
        if before is None:
            return not figures.is_empty
        at_s, written = before
        return figures != written or (not figures.is_empty and now_s - at_s >= _AGAIN_AFTER_S)

    def _put(self, connection: Connection, changed: dict[_Key, Figures], now_s: float) -> None:
        for (model, tier), figures in changed.items():
            row: dict[str, Any] = {
                "router": self.process,
                "model": model,
                "tier": tier.label,
                "at_s": now_s,
                "figures": figures_to_json(figures),
            }
            connection.execute(self._access.store.insert_or_update(objective_figures, row))
        old = objective_figures.c.at_s < now_s - _FORGET_AFTER_S
        connection.execute(sql.delete(objective_figures).where(old))
