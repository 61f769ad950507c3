"""Collects what streams have produced until the sender comes round to them.

There is no timer and no knob. The sender takes the stream that has waited longest, with everything it has
produced since its last response. While sending keeps up, each token leaves on its own; when it does not,
responses grow by just as much as the path behind them is slow, and no throughput is lost.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from python_backend.engine.messages import SequenceEvent


@dataclass(slots=True)
class Pending:
    """What one sequence has produced since its last response."""

    key: int
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None


class Coalescer:
    def __init__(self) -> None:
        self._waiting: dict[int, Pending] = {}
        self._order: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: SequenceEvent) -> None:
        pending = self._waiting.get(event.key)
        if pending is None:
            pending = self._waiting[event.key] = Pending(event.key)
            self._order.append(event.key)
        pending.token_ids += event.token_ids
        pending.finish_reason = event.finish_reason
        pending.error = event.error

    def take(self) -> Pending | None:
        """The stream that has waited longest, with all it has; None when nobody waits."""
        if not self._order:
            return None
        return self._waiting.pop(self._order.popleft())
