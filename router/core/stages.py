"""Where the time of a request went: stages that add up to the whole; and until when its client waits."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

from python_backend.wire.errors import ErrorKind, InflightError


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """The engine's moments, on the system's monotonic clock: the router's too, on the same machine."""

    arrival_s: float
    first_scheduled_s: float
    first_token_s: float
    last_token_s: float


class Moments(NamedTuple):
    """The router's: the request is here, let in, sent on, last heard of, and over."""

    arrived_s: float
    admitted_s: float
    dispatched_s: float
    received_s: float
    ended_s: float


# The stages that only the engine can tell apart are one where its clock is another machine's.
TOGETHER = "triton"
STAGES = (
    "admission",
    "queue",
    "preprocessing",
    "engine_queue",
    "prefill",
    "decode",
    "postprocessing",
    "send",
    TOGETHER,
)
Mark = tuple[str, float, float]


def stage_marks(router: Moments, engine: EngineTimes | None) -> list[Mark]:
    """Every stage in order, with its begin and end: each begins where the one before it ends.

    `admission` is until the key, the body and the limits are checked, `queue` until the request is sent on.
    `preprocessing` is from sending until the engine has the request, tokenizing and Triton's queue in it;
    `postprocessing` from the last token to its arrival here.
    """
    marks = [
        ("admission", router.arrived_s, router.admitted_s),
        ("queue", router.admitted_s, router.dispatched_s),
    ]
    if engine is None or not _fits(router, engine):
        marks.append((TOGETHER, router.dispatched_s, router.received_s))
    else:
        marks += [
            ("preprocessing", router.dispatched_s, engine.arrival_s),
            ("engine_queue", engine.arrival_s, engine.first_scheduled_s),
            ("prefill", engine.first_scheduled_s, engine.first_token_s),
            ("decode", engine.first_token_s, engine.last_token_s),
            ("postprocessing", engine.last_token_s, router.received_s),
        ]
    marks.append(("send", router.received_s, router.ended_s))
    return marks


def _fits(router: Moments, engine: EngineTimes) -> bool:
    """Whether the engine's clock can be this one's: its moments are in order, and within the router's."""
    moments = (
        router.dispatched_s,
        engine.arrival_s,
        engine.first_scheduled_s,
        engine.first_token_s,
        engine.last_token_s,
        router.received_s,
    )
    return all(earlier <= later for earlier, later in pairwise(moments))


HEADER = "x-inflight-deadline-ms"
_MOST_MS = 3_600_000


def read_deadline(given: str | None, remaining_s: float | None, arrived_s: float) -> float:
    """On the clock of `arrived_s`: by the header, or by what is left of the call, whichever is sooner."""
    deadline_s = inf if remaining_s is None else arrived_s + remaining_s
    if given is None:
        return deadline_s
    is_number = given.isascii() and given.isdigit() and len(given) <= len(str(_MOST_MS))
    if not is_number or not 1 <= int(given) <= _MOST_MS:
        shown = given if given.isprintable() and len(given) <= 20 else "something else"
        message = f"{HEADER}: expected 1 to {_MOST_MS} milliseconds, got {shown}"
        raise InflightError(ErrorKind.INVALID_REQUEST, message, HEADER)
    return min(deadline_s, arrived_s + int(given) / 1000)
