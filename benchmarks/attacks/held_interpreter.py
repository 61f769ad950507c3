"""Tells how long each door lets one request hold the interpreter: part of `python -m benchmarks.attacks`.

Each shape of body is sent to each door of a router in a process of its own, one after another, in which a
thread and a task wait for their turns. All figures are in CPU time at the pace of the machine for which the
goal was set, and the least of a few looks counts: what holds the interpreter does so each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.table import Table

from tests.router.body_shapes import Attempt, all_attempts
from tests.router.held_interpreter import MOST_MS, REFERENCE_MS, WatchedRouter, watched_router

if TYPE_CHECKING:
    from rich.console import Console

NAME = "one request of any shape"
_LOOKS = 4


def measure(router: WatchedRouter, attempts: Iterable[Attempt]) -> dict[str, tuple[str, float]]:
    """The worst shape of each door, and for how many milliseconds it held the interpreter."""
    worst: dict[str, tuple[str, float]] = {}
    for attempt in attempts:
        door, _, shape = attempt.name.rpartition(": ")
        took_ms = _least_ms(router, attempt)
        if took_ms > worst.get(door, ("", 0.0))[1]:
            worst[door] = (shape, took_ms)
    return worst


def _least_ms(router: WatchedRouter, attempt: Attempt) -> float:
    least_ms = float("inf")
    for _ in range(_LOOKS):
        held = router.longest(lambda: router.send(attempt))
        least_ms = min(least_ms, held.at_reference_pace_ms)
        if least_ms <= MOST_MS:
            break
    return least_ms


def report(console: Console) -> bool:
    """Whether the goal was met; prints the doors, the worst first."""
    with watched_router() as router:
        worst = measure(router, all_attempts())
    pace = f"on a machine that decodes the reference in {REFERENCE_MS:g} ms"
    table = Table("door", "worst shape", "held, ms", caption=f"goal: at most {MOST_MS:g} ms, {pace}")
    for door, (shape, took_ms) in sorted(worst.items(), key=lambda each: -each[1][1]):
        table.add_row(door, shape, f"{took_ms:.1f}" if took_ms <= MOST_MS else f"{took_ms:.1f} MISSED")
    console.print(table)
    return all(took_ms <= MOST_MS for _, took_ms in worst.values())
