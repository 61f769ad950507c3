"""What a traced request becomes when it is over: a span for all of it, one for each stage, and the steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from router.core.record import Outcome
from router.core.stages import TOGETHER
from router.core.trace import STEP_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.core.record import Record
    from router.core.trace import Trace

    Value = str | int | float | tuple[str, ...]
    Attributes = dict[str, Value]

STEP = "engine step"
PAUSED = "paused"
FIRST_TOKEN = "first token"
ATTEMPT = "attempt"
_COMPUTING = ("prefill", "decode")
# What an engine may tell; more are passed over.
_MOST_STEPS = 256
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v1/score": "score",
}
_STEP_ATTRIBUTES = (
    "inflight.step.tokens",
    "inflight.step.sequences",
    "inflight.step.batch_tokens",
    "inflight.step.count",
)


class Kind(Enum):
    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    at_s: float
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class Span:
    """Times are on the monotonic clock; `error` is what kind of failure it was, where it is one."""

    name: str
    span_id: int
    parent_id: int  # 0: none
    start_s: float
    end_s: float
    kind: Kind = Kind.INTERNAL
    attributes: Attributes = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    error: str = ""


def spans_of(
    trace: Trace, record: Record, status: int, now_s: float, new_id: Callable[[], int]
) -> list[Span]:
    """The request's own first, then its stages in order; none of any text of prompt or answer."""
    here = trace.here.span_id
    request = Span(
        trace.name,
        here,
        0 if trace.parent is None else trace.parent.span_id,
        record.arrived_s,
        now_s,
        Kind.SERVER,
        {**trace.attributes, **_facts(trace, record)},
        tuple(_events(trace, record)),
    )
    if status >= 500 or (record.outcome == Outcome.FAILED.value and status < 400):
        kind = record.error or (str(status) if status >= 500 else record.outcome)
        request.error = request.attributes["error.type"] = kind
    stages = [
        Span(name, new_id(), here, start_s, end_s, Kind.CLIENT if name == TOGETHER else Kind.INTERNAL)
        for name, start_s, end_s in _marks(record, now_s)
    ]
    return [request, *stages, *_steps(trace, request, stages, new_id)]


def _marks(record: Record, now_s: float) -> list[tuple[str, float, float]]:
    """The stages; only the first of what was not admitted."""
    marks = record.marks(now_s)
    return marks if marks or not record.model else [("admission", record.arrived_s, now_s)]


def _facts(trace: Trace, record: Record) -> Attributes:
    facts: Attributes = {"inflight.request_id": record.request_id, "inflight.tenant": record.tenant}
    if record.model:
        facts["gen_ai.provider.name"] = "inflight"
        facts["gen_ai.request.model"] = record.model
        facts["inflight.tier"] = record.tier.label
        if operation := _OPERATIONS.get(record.route, "text_completion" if record.finish_reason else ""):
            facts["gen_ai.operation.name"] = operation
    if record.model_version:
        facts["inflight.release"] = record.model_version
    if record.outcome:
        facts["inflight.outcome"] = record.outcome
    if record.prompt_tokens:
        facts["gen_ai.usage.input_tokens"] = record.prompt_tokens
        facts["gen_ai.usage.output_tokens"] = record.completion_tokens
        facts["inflight.cached_tokens"] = record.cached_tokens
    if record.finish_reason:
        facts["gen_ai.response.finish_reasons"] = (record.finish_reason,)
    if trace.attempts:
        facts["inflight.replica"] = trace.attempts[-1].replica
        facts["inflight.attempts"] = len(trace.attempts)
    return facts


def _events(trace: Trace, record: Record) -> Iterator[Event]:
    if len(trace.attempts) > 1:
        for attempt in trace.attempts:
            said: Attributes = {"inflight.replica": attempt.replica}
            if attempt.part:
                said["inflight.part"] = attempt.part
            if attempt.failure:
                said["error.type"] = attempt.failure
            yield Event(ATTEMPT, attempt.began_s, said)
    if record.first_token_s is not None:
        yield Event(FIRST_TOKEN, record.first_token_s)


def _steps(trace: Trace, request: Span, stages: list[Span], new_id: Callable[[], int]) -> Iterator[Span]:
    """Each below the stage that it falls into; none where the engine's clock is another machine's."""
    told = trace.steps
    computing = [stage for stage in stages if stage.name in _COMPUTING]
    if len(told) % STEP_COLUMNS or not computing:
        return
    for first in range(0, min(len(told), _MOST_STEPS * STEP_COLUMNS), STEP_COLUMNS):
        begin_ns, end_ns, *amounts = told[first : first + STEP_COLUMNS]
        start_s, end_s = begin_ns / 1e9, end_ns / 1e9
        if not request.start_s <= start_s <= end_s <= request.end_s:
            continue
        within = (stage for stage in computing if stage.start_s <= start_s and end_s <= stage.end_s)
        parent = next(within, request)
        attributes: Attributes = dict(zip(_STEP_ATTRIBUTES, amounts, strict=True)) if any(amounts) else {}
        name = STEP if attributes else PAUSED
        yield Span(name, new_id(), parent.span_id, start_s, end_s, attributes=attributes)
