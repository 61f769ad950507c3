"""Deaths of releases' processes, as events in the store: rollouts count them, and people read them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.control.recorder import Recorder
from router.control.releases.faults import Deaths
from router.control.releases.writes import write_event
from router.store.schema import release_events

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from router.control.releases.records import Rollout
    from router.core.manifest import Manifest
    from router.store.database import StoreAccess

_DIED = "died"


@dataclass(frozen=True, slots=True)
class _Death:
    at_s: float
    manifest: Manifest
    why: str


class DeathRecorder(Recorder):
    """Every router sees them; the one in control writes them down, so that each is there once."""

    _what = "the crash of a release's process"

    def __init__(
        self,
        access: StoreAccess,
        in_control: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(access)
        self._in_control = in_control
        self._clock = clock
        self._waiting: list[_Death] = []

    def died(self, manifest: Manifest, server: str, why: str) -> None:
        if self._in_control():
            self._waiting.append(_Death(self._clock(), manifest, f"on {server}: {why}"))

    async def write(self) -> None:
        if not self._waiting:
            return
        deaths, self._waiting = self._waiting, []

        def put(connection: Connection) -> None:
            for each in deaths:
                of = each.manifest
                write_event(connection, each.at_s, of.model, of.version, _DIED, each.why)

        if not await self._commit(put):
            self._waiting = deaths + self._waiting


def deaths_in(connection: Connection, rollout: Rollout) -> Deaths:
    event = release_events.c
    since = (event.model == rollout.model) & (event.what == _DIED) & (event.at_s >= rollout.began_s)
    query = sql.select(event.version, event.reason).where(since).order_by(event.id)
    found = [(row.version, row.reason) for row in connection.execute(query)]
    reasons = [reason for version, reason in found if version == rollout.canary]
    stable = sum(version == rollout.stable for version, _ in found)
    return Deaths(len(reasons), stable, reasons[-1] if reasons else "")
