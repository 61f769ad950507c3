"""One replay from beginning to end: the plan is sent, the server is watched, and a run comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from loadtest.replay.clients import send_from
from loadtest.replay.plan import plan_of
from loadtest.results import LoadRun, Slo
from loadtest.server_metrics import MetricsSampler

if TYPE_CHECKING:
    from loadtest.replay.sender import Target, Told
    from loadtest.traces import Trace


@dataclass(frozen=True)
class Replay:
    """`seed` makes the prompts; without one they are new in every run."""

    trace: Trace
    target: Target
    slo: Mapping[str, Slo] = field(default_factory=dict)
    clients: int = 1
    seed: int | None = None
    triton_metrics_urls: tuple[str, ...] = ()
    key: str = ""  # for the router's metrics


def play_trace(replay: Replay, told: Told | None = None) -> tuple[LoadRun, bool]:
    """What was seen, and whether Ctrl-C ended it."""
    plan = plan_of(replay.trace.requests, replay.seed)
    began_s: float | None = None

    def begins(at_s: float) -> None:
        nonlocal began_s
        began_s = at_s

    began_at = datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds")
    gathering = MetricsSampler(replay.target.url, replay.triton_metrics_urls, replay.key, lambda: began_s)
    with gathering:
        sent = send_from(replay.target, plan, replay.clients, told, begins)
    run = LoadRun(
        name=replay.trace.name,
        began_at=began_at,
        duration_s=sent.duration_s,
        results=sorted(sent.results, key=lambda each: each.at_s),
        samples=gathering.samples,
        slo=dict(replay.slo),
        clamped=replay.trace.clamped,
        planned=len(plan),
    )
    return run, sent.is_interrupted
