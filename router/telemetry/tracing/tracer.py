"""Begins the traces of requests, and hands them on when the requests are over."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, Protocol

from router.core.trace import Trace, TraceContext, is_recorded, read_context
from router.telemetry.tracing.spans import spans_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from router.core.record import Record
    from router.telemetry.tracing.spans import Span

log = logging.getLogger(__name__)

RPC_SERVICE = "inference.GRPCInferenceService"
# The tracestate of a request whose engine steps are to be kept here, whether traces are exported or not.
KEPT = "inflight=steps"


class Outlet(Protocol):
    """The way to the collector of traces."""

    def new_trace_id(self) -> int: ...

    def new_span_id(self) -> int: ...

    def put(self, trace: Trace, spans: Sequence[Span], epoch_ns: int) -> None:
        """Takes the spans of one request, or drops them all; never waits.

        `epoch_ns` is what makes monotonic times those of the world.
        """


class Tracer:
    """Of the requests that say nothing themselves, `percent` in a hundred are traced."""

    def __init__(self, outlet: Outlet, percent: float, chance: Callable[[], float] = random.random) -> None:
        self._outlet = outlet
        self._percent = percent
        self._chance = chance

    def begin_http(self, method: str, route: str, headers: Mapping[str, str]) -> Trace | None:
        """None where it is not to be traced. A route of no name is one that nobody serves."""
        context = read_context(headers.get("traceparent"), headers.get("tracestate"))
        attributes: dict[str, str | int] = {"http.request.method": method}
        if route:
            attributes["http.route"] = route
        return self._begin(f"{method} {route}".rstrip(), attributes, context)

    def begin_rpc(self, method: str, metadata: Sequence[tuple[str, Any]]) -> Trace | None:
        context = read_context(*(_joined(name, metadata) for name in ("traceparent", "tracestate")))
        attributes: dict[str, str | int] = {
            "rpc.system": "grpc",
            "rpc.service": RPC_SERVICE,
            "rpc.method": method,
        }
        return self._begin(f"{RPC_SERVICE}/{method}", attributes, context)

    def _begin(
        self, name: str, attributes: dict[str, str | int], parent: TraceContext | None
    ) -> Trace | None:
        if not is_recorded(parent, self._percent, 0.0 if parent is not None else self._chance()):
            return None
        outlet = self._outlet
        trace_id, state = (outlet.new_trace_id(), "") if parent is None else (parent.trace_id, parent.state)
        return Trace(name, attributes, TraceContext(trace_id, outlet.new_span_id(), True, state), parent)

    def end(self, trace: Trace, record: Record, status: int) -> None:
        """Once, when the request is over; `status` is HTTP's, or what it would be."""
        try:
            epoch_ns = time.time_ns() - time.monotonic_ns()
            spans = spans_of(trace, record, status, time.monotonic(), self._outlet.new_span_id)
            self._outlet.put(trace, spans, epoch_ns)
        except Exception:  # the request is answered, whatever becomes of its trace
            log.exception("%s could not be traced", record.request_id)


def begin_kept(method: str, route: str, headers: Mapping[str, str]) -> Trace | None:
    """For the list of recent requests alone: nothing of it is exported."""
    parent = read_context(headers.get("traceparent"), KEPT)
    if parent is None or not parent.is_sampled:
        return None
    here = TraceContext(parent.trace_id, random.getrandbits(63) + 1, True, parent.state)
    return Trace(f"{method} {route}", {"http.request.method": method}, here, parent)


def _joined(name: str, metadata: Sequence[tuple[str, Any]]) -> str:
    """What comes several times is one list; a traceparent is malformed then."""
    return ",".join(value for key, value in metadata if key == name and isinstance(value, str))
