"""One request that is traced, while it is under way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

STEP_COLUMNS = 6


@dataclass(slots=True)
class Attempt:
    """One time that a request was sent to a replica; `failure` is how that ended, where it was no answer.

    `part` is what of it was, by the contract's name, where that is not the whole.
    """

    replica: str
    began_s: float
    failure: str = ""
    part: str = ""


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

    def attempted(self, replica: str, now_s: float, part: str = "") -> None:
        self.attempts.append(Attempt(replica, now_s, part=part))

    def failed(self, began_s: float, failure: str) -> None:
        """The attempt that began then."""
        for attempt in self.attempts:
            if attempt.began_s == began_s:
                attempt.failure = failure


SAMPLED = 1
# A later version may say more, behind another dash; what is before that means the same for good.
_TRACEPARENT = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL
)
_NO_VERSION = "ff"
_MOST_MEMBERS = 32
_MOST_STATE_CHARS = 512  # what everybody must be able to pass on; nobody has to do more
_KEY = r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(f"{_KEY}={_VALUE}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A place in a trace: the whole, the part within it, and what others want to have passed on."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


def read_context(traceparent: str | None, tracestate: str | None = None) -> TraceContext | None:
    """What a client says of itself; None where it says nothing, or nothing that can be understood."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == _NO_VERSION or (version == "00" and more is not None):
        return None
    if int(trace_id, 16) == 0 or int(span_id, 16) == 0:
        return None
    is_sampled = bool(int(flags, 16) & SAMPLED)
    return TraceContext(int(trace_id, 16), int(span_id, 16), is_sampled, read_state(tracestate or ""))


def read_state(tracestate: str) -> str:
    """As it is to be passed on; nothing at all where a part of it is not as it must be."""
    members = [member for each in tracestate.split(",") if (member := each.strip(" \t"))]
    state = ",".join(members)
    keys = {member.partition("=")[0] for member in members}
    is_good = (
        len(keys) == len(members) <= _MOST_MEMBERS
        and len(state) <= _MOST_STATE_CHARS
        and all(map(_MEMBER.fullmatch, members))
    )
    return state if is_good else ""


def is_recorded(parent: TraceContext | None, percent: float, chance: float) -> bool:
    """Whoever began the trace has decided; else so many in a hundred, by a chance in 0..1."""
    return chance * 100 < percent if parent is None else parent.is_sampled
