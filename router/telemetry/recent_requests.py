"""The last requests for models, in memory: what was measured of each, never any text."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from router.core.tenant import NOBODY
from router.telemetry.tracing.spans import ATTEMPT, PAUSED, STEP, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.core.record import Record
    from router.telemetry.tracing.spans import Span

MOST = 2000
_REFUSED = 400
_UNHEARD = 499  # the client left before it was told anything


class EndedRequest(NamedTuple):
    record: Record
    status: int
    ended_s: float

    @property
    def total_s(self) -> float:
        return self.ended_s - self.record.arrived_s


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which requests: of all that have what is said here; `failed` are those that were refused or broke."""

    tenant: str | None = None
    model: str | None = None
    status: int | None = None
    failed: bool = False
    slower_than_s: float = 0.0

    def has(self, ended: EndedRequest) -> bool:
        record = ended.record
        return (
            (self.tenant is None or record.tenant == self.tenant)
            and (self.model is None or record.model == self.model)
            and (self.status is None or ended.status == self.status)
            and (not self.failed or ended.status >= _REFUSED or record.outcome == "failed")
            and ended.total_s >= self.slower_than_s
        )


class RecentRequests:
    """Those that reached a model, and those refused that had a caller: strangers push nobody out."""

    def __init__(self, most: int = MOST) -> None:
        self._ended: deque[EndedRequest] = deque(maxlen=most)

    def add(self, record: Record, status: int, ended_s: float) -> None:
        if record.model or (status >= _REFUSED and record.caller is not NOBODY):
            self._ended.append(EndedRequest(record, status or _UNHEARD, ended_s))

    def newest(self, wanted: Wanted, most: int) -> Iterator[EndedRequest]:
        for ended in reversed(self._ended):
            if most <= 0:
                return
            if wanted.has(ended):
                most -= 1
                yield ended

    def tiers(self) -> dict[str, str]:
        """By the ids of the requests that are still known."""
        return {each.record.request_id: each.record.tier.label for each in self._ended}

    def find(self, request_id: str) -> EndedRequest | None:
        return next((each for each in reversed(self._ended) if each.record.request_id == request_id), None)


def summary(ended: EndedRequest) -> dict[str, Any]:
    """One line of a list."""
    record, trace = ended.record, ended.record.trace
    began_s = time.time() - time.monotonic() + record.arrived_s
    first_s = record.first_token_s
    return {
        "object": "request",
        "id": record.request_id,
        "at_s": round(began_s, 3),
        "route": record.route,
        "status": ended.status,
        "outcome": record.outcome or None,
        "error": record.error or None,
        "finish_reason": record.finish_reason or None,
        "tenant": record.tenant,
        "key_id": record.caller.key.id,
        "model": record.model or None,
        "release": record.model_version or None,
        "tier": record.tier.label,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "cost_microdollars": record.cost,
        "first_token_ms": None if first_s is None else _ms(first_s - record.arrived_s),
        "total_ms": _ms(ended.total_s),
        "trace_id": record.trace_id or None,
        "replica": trace.attempts[-1].replica if trace is not None and trace.attempts else None,
    }


def waterfall(ended: EndedRequest) -> dict[str, Any]:
    """All that is known of one: its stages, and of one that was traced the engine's steps and the attempts.

    Times are milliseconds since its arrival.
    """
    record, trace = ended.record, ended.record.trace
    arrived_s = record.arrived_s
    stages = [
        {"name": name, "start_ms": _ms(start_s - arrived_s), "end_ms": _ms(end_s - arrived_s)}
        for name, start_s, end_s in record.marks(ended.ended_s)
    ]
    shown = {**summary(ended), "stages": stages, "steps": [], "attempts": []}
    if trace is None:
        return shown
    ids = iter(range(1, 1 << 20))
    spans = spans_of(trace, record, ended.status, ended.ended_s, lambda: next(ids))
    shown["steps"] = [_step(each, arrived_s) for each in spans if each.name in (STEP, PAUSED)]
    shown["attempts"] = [
        {"at_ms": _ms(each.at_s - arrived_s), **each.attributes}
        for each in spans[0].events
        if each.name == ATTEMPT
    ]
    return shown


def _step(span: Span, arrived_s: float) -> dict[str, Any]:
    amounts = {name.rpartition(".")[2]: value for name, value in span.attributes.items()}
    start_ms, end_ms = _ms(span.start_s - arrived_s), _ms(span.end_s - arrived_s)
    return {"name": span.name, "start_ms": start_ms, "end_ms": end_ms, **amounts}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
