"""What to do next: whose lines to take, and whether an answer is the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# How often a request is tried that the engine broke down over.
MAX_ATTEMPTS = 3
_BUDGET_WAIT_S = 60.0
_BUSY_WAIT_S = 1.0
_LONGEST_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """A batch with lines that nobody has taken, as far as is known."""

    batch_id: str
    organisation_id: str
    left: int


def shares(free: int, backlogs: Sequence[Backlog], under_way: Mapping[str, int]) -> dict[str, int]:
    """How many lines to take of which batch, the oldest first.

    Each place goes to the organisation that has the fewest: a large batch of one does not keep the small
    one of another waiting.
    """
    busy = dict(under_way)
    left = {backlog.batch_id: backlog.left for backlog in backlogs}
    taken: dict[str, int] = {}
    for _ in range(free):
        open_ones = [backlog for backlog in backlogs if left[backlog.batch_id] > 0]
        if not open_ones:
            break
        chosen = min(open_ones, key=lambda backlog: busy.get(backlog.organisation_id, 0))
        left[chosen.batch_id] -= 1
        taken[chosen.batch_id] = taken.get(chosen.batch_id, 0) + 1
        busy[chosen.organisation_id] = busy.get(chosen.organisation_id, 0) + 1
    return taken


@dataclass(frozen=True, slots=True)
class Again:
    """Not an answer to the request: nothing of this organisation is sent for so long, then it is once more.

    `is_attempt`: such failures are counted, for a request that breaks the engine must not do so for a day.
    """

    wait_s: float
    is_attempt: bool = False


def verdict(status: int, code: str | None, retry_after_s: float | None, attempts: int) -> Again | None:
    """None: this is what the output says of the line. `attempts` were made before this one."""
    if status == 429 and code == "insufficient_quota":
        return Again(_BUDGET_WAIT_S)
    if status == 429 and retry_after_s is None:
        return None  # it alone is more than the limit: waiting changes nothing
    if status == 503 and code == "engine_failed":
        return Again(_BUSY_WAIT_S, is_attempt=True) if attempts + 1 < MAX_ATTEMPTS else None
    if status in (429, 499, 503):
        wait_s = _BUSY_WAIT_S if retry_after_s is None else retry_after_s
        return Again(min(max(wait_s, 0.0), _LONGEST_WAIT_S))
    return None
