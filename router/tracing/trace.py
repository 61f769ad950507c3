"""One request that is traced, while it is under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from router.tracing.context import TraceContext

STEP_COLUMNS = 6


@dataclass(slots=True)
class Attempt:
    """One time that a request was sent to a replica; `failure` is how that ended, where it was no answer."""

    replica: str
    began_s: float
    failure: str = ""


@dataclass(slots=True)
class Trace:
    """`here` is the request's own span, below that of the `parent` where there is one."""

    name: str
    attributes: dict[str, str | int]  # what the way in knows of it
    here: TraceContext
    parent: TraceContext | None = None
    attempts: list[Attempt] = field(default_factory=list)
    steps: Sequence[int] = ()  # of the engine, row after row

    @property
    def trace_id(self) -> str:
        return f"{self.here.trace_id:032x}"

    def tell(self, parameters: Any) -> None:
        """Puts it among the parameters of a request to Triton: for its models, and that steps are noted."""
        parameters["inflight_trace"].bool_param = True
        parameters["traceparent"].string_param = self.here.traceparent
        if self.here.state:
            parameters["tracestate"].string_param = self.here.state

    def attempted(self, replica: str, now_s: float) -> None:
        self.attempts.append(Attempt(replica, now_s))

    def failed(self, began_s: float, failure: str) -> None:
        """The attempt that began then."""
        for attempt in self.attempts:
            if attempt.began_s == began_s:
                attempt.failure = failure
