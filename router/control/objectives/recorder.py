"""Writes what this router has measured to where people and the other routers can read it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from python_backend.wire.errors import InflightError
from router.control.objectives.monitor import WINDOW_S
from router.control.objectives.records import FRESH_S, figures_to_json
from router.control.objectives.standing import Figures
from router.core.objective import Metric
from router.store.schema import objective_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from python_backend.wire.tiers import Tier
    from router.control.objectives.monitor import ObjectiveMonitor
    from router.store.database import StoreAccess

log = logging.getLogger(__name__)

WRITE_EVERY_S = 5.0
_AGAIN_AFTER_S = FRESH_S / 3  # what has not changed is written too, or it would count as a dead router's
_FORGET_AFTER_S = 3600.0

_Key = tuple[str, "Tier"]


class ObjectiveRecorder:
    """`process` names this run of this router: an earlier one's figures are not its own."""

    def __init__(
        self,
        access: StoreAccess,
        monitor: ObjectiveMonitor,
        process: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._access = access
        self._monitor = monitor
        self.process = process or f"{os.getpid()}-{secrets.token_hex(4)}"
        self._clock = clock
        self._written: dict[_Key, tuple[float, Figures]] = {}
        self._is_away = False

    async def run(self) -> None:
        """For as long as the router runs; what is left at its end is written too."""
        try:
            while True:
                await asyncio.sleep(WRITE_EVERY_S)
                try:
                    await self.write()
                except Exception:  # one time that went wrong must not be the last
                    log.exception("what was measured of the objectives could not be written")
        finally:
            await self.write()

    async def write(self) -> None:
        """What has changed since the last time; where the store is away, the next time."""
        now_s = self._clock()
        changed = {
            key: figures for key, figures in self._measured().items() if self._is_news(key, figures, now_s)
        }
        if not changed:
            return
        try:
            await self._access.write(lambda connection: self._put(connection, changed, now_s))
            self._is_away = False
        except InflightError as error:
            if not self._is_away:
                log.warning("what was measured of the objectives waits to be written: %s", error)
            self._is_away = True
            return
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
