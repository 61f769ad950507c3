"""A good and a slow release rolled out under steady traffic: who answered, how fast, what failed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.plots import Plots
from benchmarks.stack import RunningStack, running_stack
from benchmarks.traffic import Answered, Traffic, completion, traffic
from launcher.commands.installation import open_installation
from router.control.releases.records import Rollout, RolloutState, list_rollouts

PER_S, TOKENS, BUCKET_S = 4.0, 12, 2.0
PLAN = ("--steps", "5%,25%,100%", "--min-requests", "10", "--min-duration", "25s")
# The default model again: in the precision that takes half the memory, and in the one that takes its time.
GOOD, SLOW = ("2", "int4"), ("3", "fp32")
AS_THEY_SHOULD = [RolloutState.ROLLED_BACK, RolloutState.PROMOTED]
LIMIT_S, LIMIT_REQUESTS = 60.0, 200


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a release, in seconds since the traffic began."""

    at_s: float
    what: str
    version: int | None
    reason: str


def config_of(stack: RunningStack) -> Path:
    return stack.state_dir.parent / "inflight.toml"


def inflight(stack: RunningStack, *arguments: str) -> str:
    command = [sys.executable, "-m", "launcher", "release", *arguments, "--config", str(config_of(stack))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"inflight release {' '.join(arguments)}: {done.stderr or done.stdout}")
    return done.stdout


def wait_for_end(
    stack: RunningStack,
    model: str,
    limit_s: float = 180.0,
    meanwhile: Callable[[Rollout], None] = lambda rollout: None,
) -> Rollout:
    """Of the model's newest rollout; as it stands then where that takes longer."""
    deadline_s = time.monotonic() + limit_s
    with open_installation(None, config_of(stack)) as ours:
        while True:
            with ours.releases.look() as connection:
                newest = list_rollouts(connection, model, newest=1)[0]
            if newest.state.is_over or time.monotonic() > deadline_s:
                return newest
            meanwhile(newest)
            time.sleep(0.5)


def rollout(stack: RunningStack, version: str, plan: Sequence[str] = PLAN, limit_s: float = 180.0) -> Rollout:
    """Rolls a release of the stack's model out, to its end."""
    inflight(stack, "canary", f"{stack.model}@{version}", *plan)
    return wait_for_end(stack, stack.model, limit_s)


def kill_engine(stack: RunningStack, model: str) -> float:
    """The process in Triton that has the model; when that was."""
    for process in psutil.Process(stack.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            command = process.cmdline()
            if len(command) > 1 and f"/{model}/" in command[1]:
                process.kill()
                return time.time()
    raise LookupError(f"no process of {model}")


def history(stack: RunningStack, began_s: float) -> list[Event]:
    """The oldest first."""
    rows: list[dict[str, Any]] = json.loads(inflight(stack, "history", stack.model, "--json"))
    found = [Event(row["at_s"] - began_s, row["what"], row["version"], row["reason"]) for row in rows]
    return sorted(found, key=lambda event: event.at_s)


def report(console: Console, plots: Plots) -> bool:
    with running_stack() as stack:
        for version, precision in (GOOD, SLOW):
            chosen = ("--version", version, "--set", f"inflight_precision={precision}")
            inflight(stack, "add", stack.model, stack.model, *chosen)
            inflight(stack, "load", f"{stack.model}@{version}")
        with traffic(stack.url, completion(stack.model, TOKENS), PER_S) as running:
            running.wait_for(30)
            ended = [rollout(stack, version).state for version, _ in (SLOW, GOOD)]
            running.wait_for(30)
            inflight(stack, "rollback", stack.model)
            running.wait_for(30)
            events = history(stack, running.began_s)
    show(console, running, events)
    draw(plots, "releases", running, events)
    met = not running.errors and ended == AS_THEY_SHOULD and in_time(running, events)
    goal = f"no failed request, {stack.model}@3 rolled back within {LIMIT_S:g} s or {LIMIT_REQUESTS} requests"
    console.print(f"{goal}: {'met' if met else 'MISSED'}")
    return met


def in_time(running: Traffic, events: Sequence[Event]) -> bool:
    began_s = next(event.at_s for event in events if event.version == 3 and event.what == "advance")
    ended_s = next(event.at_s for event in events if event.version == 3 and event.what == "rollback")
    return ended_s - began_s <= LIMIT_S or len(running.of("3")) <= LIMIT_REQUESTS


def show(console: Console, running: Traffic, events: Sequence[Event]) -> None:
    table = Table("release", "requests", "failed", "first token, p50", "between tokens, p50")
    for version in ("1", "2", "3"):
        answered = running.of(version)
        table.add_row(
            version,
            f"{len(answered)}",
            f"{len([each for each in answered if each.error])}",
            _milliseconds([each.first_token_s for each in answered]),
            _milliseconds([each.between_tokens_s for each in answered]),
        )
    console.print(table)
    for event in events:
        if event.at_s >= 0:
            console.print(f"{event.at_s:6.1f} s  @{event.version}  {event.what}  {event.reason}")


def _milliseconds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known) * 1000:.1f} ms" if known else "-"


def draw(plots: Plots, name: str, running: Traffic, events: Sequence[Event]) -> None:
    last_s = max(each.at_s for each in running.answered)
    places = [BUCKET_S * number for number in range(int(last_s / BUCKET_S) + 1)]

    def within(at_s: float) -> list[Answered]:
        return [each for each in running.answered if at_s <= each.at_s < at_s + BUCKET_S]

    buckets = [within(at_s) for at_s in places]
    shares: dict[str, Sequence[float | None]] = {}
    latencies: dict[str, Sequence[float | None]] = {}
    for version in ("1", "2", "3"):
        mine = [[each for each in bucket if each.release == version] for bucket in buckets]
        shares[f"release {version}"] = [
            100 * len(some) / max(1, len(bucket)) for some, bucket in zip(mine, buckets, strict=True)
        ]
        latencies[f"release {version}"] = [
            1000 * median(known)
            if (known := [each.between_tokens_s for each in some if each.between_tokens_s])
            else None
            for some in mine
        ]
    errors = [100 * len([each for each in bucket if each.error]) / max(1, len(bucket)) for bucket in buckets]
    marks = [
        (event.at_s, f"@{event.version} {event.what}")
        for event in events
        if event.at_s >= 0 and event.what in ("advance", "promote", "rollback")
    ]
    panels: dict[str, dict[str, Sequence[float | None]]] = {
        "share of requests, %": shares,
        "failed, %": {"all releases": errors},
        "between tokens, ms": latencies,
    }
    title = "Two rollouts under traffic: the slow release is rolled back, the good one takes over"
    plots.over_time(name, title, places, panels, marks)
