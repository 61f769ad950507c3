"""Each request measured, counted, traced and logged, whichever door it came through."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from router.core.record import Outcome, RequestLine, RequestLines
from router.telemetry.logs import speaker
from router.telemetry.recent_requests import RecentRequests
from router.telemetry.tracing.tracer import KEPT, begin_kept
from router.telemetry.values import Observations, Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from python_backend.wire.errors import ErrorKind
    from python_backend.wire.tiers import Tier
    from router.core.record import Record
    from router.telemetry.metrics import Metrics
    from router.telemetry.tracing.tracer import Tracer
    from router.telemetry.values import Counter, Histogram

log = logging.getLogger("router.app")  # as operators know it

# Asked by machines every few seconds: neither traced nor logged, unless somebody debugs.
_QUIET = frozenset(
    {
        "/health",
        "/health/live",
        "/health/ready",
        "/v2/health/live",
        "/v2/health/ready",
        "/metrics",
        "/ping",
        "grpc ServerLive",
        "grpc ServerReady",
        "grpc ModelReady",
        "grpc Check",
    }
)
_BUSY = 503


class Ended(dict[str, Value]):
    """By outcome, each from the first request on that ends so."""

    def __init__(self, family: Counter, who: tuple[str, str, str]) -> None:
        super().__init__()
        self._family, self._who = family, who

    def __missing__(self, outcome: str) -> Value:
        found = self[outcome] = self._family.labels(outcome, *self._who)
        return found


class StageTimes(dict[str, Observations]):
    """By stage, each from the first request on that has it: no request has them all."""

    def __init__(self, family: Histogram, who: tuple[str, str, str]) -> None:
        super().__init__()
        self._family, self._who = family, who

    def __missing__(self, stage: str) -> Observations:
        found = self[stage] = self._family.labels(stage, *self._who)
        return found


class RequestMeter:
    """Of one model, release, tenant and tier, looked up once: a lookup costs more than counting."""

    __slots__ = (
        "_between_chunks",
        "_completion_tokens",
        "_duration",
        "_ended",
        "_errors",
        "_first_token",
        "_measured",
        "_model",
        "_prompt_tokens",
        "_stages",
        "in_flight",
    )

    def __init__(self, metrics: Metrics, who: tuple[str, str, str], tier: Tier) -> None:
        self.in_flight = metrics.in_flight.labels(*who)
        self._first_token = metrics.first_token.labels(*who)
        self._between_chunks = metrics.between_chunks.labels(*who)
        self._duration = metrics.duration.labels(*who)
        self._prompt_tokens = metrics.prompt_tokens.labels(*who)
        self._completion_tokens = metrics.completion_tokens.labels(*who)
        self._stages = StageTimes(metrics.stages, who)
        self._ended = Ended(metrics.ended, who)
        self._errors = metrics.triton_errors
        self._model = who[0]
        self._measured = metrics.objectives.series(self._model, tier)

    def closed(self, record: Record, now_s: float) -> None:
        self.in_flight.value -= 1
        took_s = now_s - record.arrived_s
        self._duration.observe(took_s)
        stages = self._stages
        for stage, start_s, end_s in record.marks(now_s):
            stages[stage].observe(end_s - start_s)
        self._prompt_tokens.value += record.prompt_tokens
        self._completion_tokens.value += record.completion_tokens
        self._ended[record.outcome].value += 1
        if record.outcome == Outcome.FINISHED:
            self._measured.end_to_end.note(took_s)

    def first_chunk(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def first_token(self, seconds: float) -> None:
        self._measured.first_token.note(seconds)

    def gaps(self, gaps: Sequence[tuple[float, int]]) -> None:
        self._between_chunks.observe_each([seconds for seconds, _ in gaps])
        # Tokens that come together have a part of the time each.
        shares = [(seconds / tokens, tokens) for seconds, tokens in gaps if tokens]
        self._measured.inter_token.note_each(shares)

    def gap(self, seconds: float) -> None:
        self._between_chunks.observe(seconds)

    def inter_token(self, seconds: float, tokens: int) -> None:
        self._measured.inter_token.note(seconds, tokens)

    def model_failed(self, kind: ErrorKind) -> None:
        self._errors.labels(kind.label, self._model).inc()


class RequestAccounts:
    """Label values come from the settings, never from a client, so that the number of meters is bounded."""

    def __init__(self, metrics: Metrics, tracer: Tracer | None = None) -> None:
        self.recent = RecentRequests()
        self._metrics = metrics
        self._tracer = tracer
        self._meters: dict[tuple[str, str, str, Tier], RequestMeter] = {}
        self._unlogged = RequestLines()

    def begin_http(self, record: Record, method: str, headers: Mapping[str, str], is_known: bool) -> None:
        speaker.set(record)
        if self._tracer is not None and record.route not in _QUIET:
            record.trace = self._tracer.begin_http(method, record.route if is_known else "", headers)
        elif headers.get("tracestate") == KEPT:
            record.trace = begin_kept(method, record.route, headers)

    def begin_rpc(self, record: Record, method: str, metadata: Sequence[tuple[str, Any]]) -> None:
        speaker.set(record)
        if self._tracer is not None and record.route not in _QUIET:
            record.trace = self._tracer.begin_rpc(method, metadata)

    def opened(self, record: Record) -> RequestMeter:
        key = (record.model, record.model_version, record.caller.organisation.id, record.tier)
        found = self._meters.get(key)
        if found is None:
            found = self._meters[key] = RequestMeter(self._metrics, key[:3], record.tier)
        found.in_flight.value += 1
        return found

    def end(self, record: Record, status: int, grpc_code: int | None = None) -> None:
        metrics = self._metrics
        metrics.requests.labels(record.route, str(status), *_who(record)).inc()
        if status == _BUSY and record.model and record.dispatched_s is None:
            metrics.objectives.refused(record.model, record.tier)
        if record.held_s:
            metrics.held_refusals.labels(record.tenant).inc()
        if self._tracer is not None and record.trace is not None:
            if grpc_code is not None:
                record.trace.attributes["rpc.grpc.status_code"] = grpc_code
            elif status:
                record.trace.attributes["http.response.status_code"] = status
            self._tracer.end(record.trace, record, status)
        now_s = time.monotonic()
        self.recent.add(record, status, now_s)
        line = RequestLine(record, status, now_s)
        if record.route in _QUIET:
            log.debug("%s", RequestLines([line]))
        else:
            self._log(line)
        record.is_over = True

    def _log(self, line: RequestLine) -> None:
        """Together with those that end in the same turn of the event loop: one write for all."""
        if not self._unlogged:
            asyncio.get_running_loop().call_soon(self._log_all)
        self._unlogged.append(line)

    def _log_all(self) -> None:
        lines, self._unlogged = self._unlogged, RequestLines()
        log.info("%s", lines)


def _who(record: Record) -> tuple[str, str, str]:
    """No release where there is no model: what was refused before a model was chosen."""
    return record.model, record.model_version if record.model else "", record.tenant
