"""How often each tenant has asked each release here, and how long that took: a tenant sees its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.core.record import Record

_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Tally:
    """Since the router's start; a cancelled request counts as failed. `last_ms` is on the wall clock."""

    finished: int = 0
    finished_ns: int = 0
    failed: int = 0
    failed_ns: int = 0
    last_ms: int = 0


class Statistics:
    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str, str], Tally] = {}

    def add(self, record: Record, finished: bool, now_s: float) -> None:
        """One request that has ended."""
        tally = self._tallies.setdefault((record.tenant, record.model, record.model_version), Tally())
        took_ns = int((now_s - record.arrived_s) * _NS_PER_S)
        if finished:
            tally.finished += 1
            tally.finished_ns += took_ns
        else:
            tally.failed += 1
            tally.failed_ns += took_ns
        tally.last_ms = int(time.time() * 1000)

    def of(self, tenant: str, model: str, version: str) -> Tally:
        return self._tallies.get((tenant, model, version), Tally())
