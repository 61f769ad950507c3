"""Each request counted, traced and logged, whichever door it came through."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from router.core.record import RequestLine
from router.telemetry.logs import OWN_WORDS, speaker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.core.record import Record
    from router.telemetry.metrics import Metrics
    from router.telemetry.tracing.tracer import Tracer

log = logging.getLogger("router.app")  # as operators know it

# Asked by machines every few seconds: neither traced nor logged, unless somebody debugs.
_QUIET = frozenset(
    {
        "/health/live",
        "/health/ready",
        "/v2/health/live",
        "/v2/health/ready",
        "/metrics",
        "grpc ServerLive",
        "grpc ServerReady",
        "grpc ModelReady",
    }
)


class RequestAccounts:
    def __init__(self, metrics: Metrics, tracer: Tracer | None = None) -> None:
        self._metrics = metrics
        self._tracer = tracer

    def begin_http(self, record: Record, method: str, headers: Mapping[str, str], is_known: bool) -> None:
        speaker.set(record)
        if self._tracer is not None and record.route not in _QUIET:
            record.trace = self._tracer.begin_http(method, record.route if is_known else "", headers)

    def begin_rpc(self, record: Record, method: str, metadata: Sequence[tuple[str, Any]]) -> None:
        speaker.set(record)
        if self._tracer is not None and record.route not in _QUIET:
            record.trace = self._tracer.begin_rpc(method, metadata)

    def end(self, record: Record, status: int, grpc_code: int | None = None) -> None:
        self._metrics.answered(record, status)
        if self._tracer is not None and record.trace is not None:
            if grpc_code is not None:
                record.trace.attributes["rpc.grpc.status_code"] = grpc_code
            elif status:
                record.trace.attributes["http.response.status_code"] = status
            self._tracer.end(record.trace, record, status)
        level = logging.DEBUG if record.route in _QUIET else logging.INFO
        if log.isEnabledFor(level):
            line = RequestLine(record, status, time.monotonic())
            # As `log.log` does, but for its search for the caller.
            log.handle(log.makeRecord(log.name, level, "", 0, "%s", (line,), None, extra=OWN_WORDS))
        record.is_over = True
