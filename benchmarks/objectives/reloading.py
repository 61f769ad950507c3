"""T16: another queue delay loaded under steady traffic; nobody fails, and nobody waits much longer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from statistics import median

from benchmarks.objectives.delays import Case
from benchmarks.objectives.embeddings import set_delay
from benchmarks.objectives.serving import Served
from benchmarks.traffic import traffic

PER_S, BEFORE, AFTER = 200.0, 600, 1200
GOAL_REQUESTS, GOAL_ADDED_MS = 1500, 150.0


@dataclass(frozen=True)
class Reloaded:
    requests: int
    failed: list[str]
    usual_ms: float
    added_ms: float

    @property
    def is_met(self) -> bool:
        return not self.failed and self.requests >= GOAL_REQUESTS and self.added_ms <= GOAL_ADDED_MS

    def __str__(self) -> str:
        return (
            f"T16: {self.requests:,} requests at {PER_S:g}/s, {len(self.failed)} failed, usually "
            f"{self.usual_ms:.1f} ms, at most {self.added_ms:.0f} ms more while the delay changed "
            f"({GOAL_ADDED_MS:g} ms): {'met' if self.is_met else 'MISSED'}"
        )


def reload_under_traffic(served: Served, case: Case, delay_ms: float = 5.0) -> Reloaded:
    door = case.door(served.url)
    with traffic(door.url, door.body, PER_S, path=door.path) as running:
        running.wait_for(BEFORE)
        before = len(running.answered)
        asyncio.run(set_delay(served, case.triton_model, delay_ms))
        running.wait_for(AFTER)
    usual_s = median(each.took_s for each in running.answered[:before])
    most_s = max(each.took_s for each in running.answered[before:])
    return Reloaded(len(running.answered), running.errors[:10], 1000 * usual_s, 1000 * (most_s - usual_s))
