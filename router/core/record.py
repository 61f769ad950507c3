"""What is known of one request, from its arrival to its end: metrics and the log line are made from it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier
from router.core.stages import EngineTimes, Mark, Moments, stage_marks
from router.core.tenant import NOBODY, Caller

if TYPE_CHECKING:
    from router.core.journal import Journal
    from router.core.trace import Trace


class Outcome(str, Enum):
    """The ways an accepted request can end."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Record:
    """One per HTTP request; filled in as the request goes on. Times are on the monotonic clock, but one."""

    route: str
    request_id: str
    caller: Caller = NOBODY
    values: dict[str, str] = field(default_factory=dict)  # of the names in the route
    id_header: str = ""  # a second one for the id, by the name that the clients of this route know
    tier: Tier = Tier.STANDARD  # in force: for admission, objectives and the engine alike
    is_counted: bool = False  # at the door, among the requests that its caller may send in a minute
    is_tier_given: bool = False  # by whoever sends it from inside, whatever it asks for
    model: str = ""
    model_version: str = ""  # the release that answers
    pinned_release: str = ""  # by the header x-inflight-release
    is_release_given: bool = False  # it has answered a part already
    user: str = ""  # as the body names the one behind the key, or the key's own
    conversation: str = ""
    cascade: str = ""  # which one it asked, the model of it that answers, and why not the small one
    rollout: tuple[int | None, int] = (None, 0)  # which one, and its step, chose the release
    shadow: int | None = None  # the release that gets it too, and whose answer nobody sees
    is_mirrored: bool = False  # to the canary of its rollout
    arrived_s: float = field(default_factory=time.monotonic)
    began_s: float = field(default_factory=time.time)  # by the calendar, as its answer is dated
    deadline_s: float = inf  # by when its client wants the first token, or the answer of a fixed-cost model
    first_token_s: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: int = 0  # micro-dollars, once it is billed
    finish_reason: str = ""
    opening: str = ""  # of the first answer, while a rollout is on; in no log
    outcome: str = ""
    admitted_s: float | None = None
    dispatched_s: float | None = None
    held_s: float = 0.0  # a refusal was kept back
    received_s: float | None = None
    engine: EngineTimes | None = None
    lost_attempts: int = 0  # of one in a rollout: how often its release failed it, saved or not
    error: str = ""  # the kind of the one that its client was told of
    trace: Trace | None = None  # where it is traced
    journal: Journal | None = None  # where another router may have to go on with it
    is_over: bool = False

    @property
    def tenant(self) -> str:
        return self.caller.organisation.id

    def ask_tier(self, tier: Tier) -> None:
        """What the request itself asks for; before it is let in."""
        if not self.is_tier_given:
            self.tier = tier

    def headers(self) -> list[tuple[str, str]]:
        """What tells a client which request this was, and who answered."""
        release = [("x-inflight-release", self.model_version)] if self.model_version else []
        known = [(self.id_header, self.request_id)] if self.id_header else []
        cascade = [("x-inflight-cascade", self.cascade)] if self.cascade else []
        return [("x-request-id", self.request_id), *known, *release, *cascade]

    @property
    def trace_id(self) -> str:
        return "" if self.trace is None else self.trace.trace_id

    def stages(self, now_s: float) -> dict[str, float]:
        """Seconds of each stage up to now; empty for what was not let in."""
        return {name: end_s - start_s for name, start_s, end_s in self.marks(now_s)}

    def marks(self, now_s: float) -> list[Mark]:
        """Begin and end of each stage up to now; empty for what was not let in."""
        if self.dispatched_s is None:
            if self.admitted_s is None:
                return []
            return [("admission", self.arrived_s, self.admitted_s), ("queue", self.admitted_s, now_s)]
        received_s = self.received_s or now_s
        admitted_s = self.admitted_s or self.dispatched_s
        return stage_marks(
            Moments(self.arrived_s, admitted_s, self.dispatched_s, received_s, now_s), self.engine
        )

    def log_fields(self) -> dict[str, object]:
        """Of lines about this request, as far as it is known by now; nothing once it is over."""
        return {} if self.is_over else self.names()

    def names(self) -> dict[str, object]:
        """What tells this request from others."""
        fields = {"request_id": self.request_id, "route": self.route}
        if self.model or self.caller is not NOBODY:
            fields["tenant"] = self.tenant
        known = {"model": self.model, "release": self.model_version, "trace_id": self.trace_id}
        return {**fields, **{name: value for name, value in known.items() if value}}

    def describe(self, status: int, now_s: float) -> str:
        """One line for the log; never any text of prompt or answer."""
        parts = [f"{self.request_id} {self.route} status={status}"]
        if self.model:
            parts.append(f"model={self.model} release={self.model_version or '-'} tenant={self.tenant}")
        if self.outcome:
            parts.append(
                f"outcome={self.outcome} finish={self.finish_reason or '-'} "
                f"prompt_tokens={self.prompt_tokens} completion_tokens={self.completion_tokens}"
            )
        if self.first_token_s is not None:
            parts.append(f"first_token_ms={(self.first_token_s - self.arrived_s) * 1e3:.1f}")
        parts.append(f"total_ms={(now_s - self.arrived_s) * 1e3:.1f}")
        parts += [f"{stage}_ms={seconds * 1e3:.1f}" for stage, seconds in self.stages(now_s).items()]
        return " ".join(parts)


class RequestLines(list["RequestLine"]):
    """Requests that ended together, for the log: one line each."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))


class RequestLine:
    """How a request went, for the log: words for people, fields for programs, made when they are written."""

    __slots__ = ("_now_s", "_record", "_status")

    def __init__(self, record: Record, status: int, now_s: float) -> None:
        self._record = record
        self._status = status
        self._now_s = now_s

    def __str__(self) -> str:
        return self._record.describe(self._status, self._now_s)

    def log_fields(self) -> dict[str, object]:
        """Never any text of prompt or answer; what does not apply is left out."""
        record, now_s = self._record, self._now_s
        found = {**record.names(), "status": self._status, "total_ms": _ms(now_s - record.arrived_s)}
        if record.outcome:
            found |= {
                "outcome": record.outcome,
                "tier": record.tier.label,
                "prompt_tokens": record.prompt_tokens,
                "completion_tokens": record.completion_tokens,
                "cached_tokens": record.cached_tokens,
            }
        if record.finish_reason:
            found["finish_reason"] = record.finish_reason
        if record.first_token_s is not None:
            found["first_token_ms"] = _ms(record.first_token_s - record.arrived_s)
        if stages := record.stages(now_s):
            found["stages_ms"] = {name: _ms(seconds) for name, seconds in stages.items()}
        return found


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def new_request_id(prefix: str) -> str:
    return f"{prefix}-{os.urandom(12).hex()}"
