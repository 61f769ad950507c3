"""One load test: a stack where there is none, Locust, the server's figures, and all of it as one run."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from launcher.commands.loadtest.fresh_stack import TENANTS, FreshStack, fresh_stack
from launcher.commands.loadtest.locust_process import LocustProcess, Web, locust_command
from launcher.commands.loadtest.progress_line import ProgressLine, Pulse
from loadtest.machine import about_machine, about_server, about_triton
from loadtest.percentiles import percentile
from loadtest.results import LoadRun
from loadtest.server_metrics import MetricsSampler
from loadtest.tenants import Tenant, tenants_of, write_tenants
from loadtest.users.models import find_target
from loadtest.users.options import KINDS, grpc_address, kinds_text
from loadtest.users.recorder import RecordReader
from loadtest.users.web_page import USER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from loadtest.results import Slo

_LOOK_INTERVAL_S = 0.5
_USUAL = (0, 1, 2)  # 1: something failed; 2: something of its own broke while it ended


@dataclass(frozen=True)
class Plan:
    """What was asked for. `url` None: a stack is started; `kinds` None: all that the target can do."""

    url: str | None
    shape: str
    users: int
    duration_s: float
    out: Path
    kinds: dict[str, int] | None = None
    tenants: str = ""
    fresh_tenants: int = len(TENANTS)
    model: str | None = None
    data_dir: Path | None = None
    grpc_address: str = ""
    triton_metrics: tuple[str, ...] = ()
    slo: Mapping[str, Slo] | None = None  # by tier
    options: Mapping[str, str] | None = None
    flags: tuple[str, ...] = ()
    web: Web | None = None
    extra: tuple[str, ...] = ()


class RunFailed(Exception):
    """There is nothing to report on; the message says why."""


class NothingRun(Exception):
    """Locust's page was open, and nobody pressed Start."""


def run_load(plan: Plan, console: Console) -> LoadRun:
    """Runs it and returns what it saw, be it cut short. Raises RunFailed and what its parts raise."""
    plan.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="inflight-loadtest-")))
        cleanup.enter_context(_terminated_is_interrupted())
        stack = cleanup.enter_context(_target(plan, folder, console))
        return _run(plan, stack, folder, console)


@contextmanager
def _target(plan: Plan, folder: Path, console: Console) -> Iterator[FreshStack]:
    if plan.url is not None:
        grpc = grpc_address(plan.grpc_address, plan.url)
        yield FreshStack(plan.url.rstrip("/"), grpc, "", plan.triton_metrics)
        return
    # Those of a file get keys of this stack, whatever keys they have elsewhere.
    tenants = tenants_of(plan.tenants) if plan.tenants else TENANTS[: plan.fresh_tenants]
    console.print("Starting a private stack ...", highlight=False)
    with fresh_stack(folder, plan.model, plan.data_dir, tenants) as stack:
        console.print(f"It is ready at {stack.url}.", highlight=False)
        try:
            yield stack
        finally:
            console.print("Stopping it ...", highlight=False)


def _run(plan: Plan, stack: FreshStack, folder: Path, console: Console) -> LoadRun:
    tenants: Sequence[Tenant] = stack.tenants or tenants_of(plan.tenants)
    key = tenants[0].key
    write_tenants(folder / "tenants.json", tenants)
    kinds = _wanted(plan, stack, key)
    about = _about(plan, stack, key, kinds)
    for former in (plan.out / "requests").glob("*.jsonl"):
        former.unlink()
    reader = RecordReader(plan.out / "requests")
    began_at = datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds")
    command = _command(plan, stack, kinds, folder / "tenants.json")
    locust = LocustProcess(command, plan.out / "locust.log", plan.web)
    metrics = stack.triton_metrics_urls
    with MetricsSampler(stack.url, metrics, key, lambda: reader.recorded.began_s, stack.names) as gathering:
        _watch(locust, reader, plan, console)
    reader.read()
    recorded = reader.recorded
    if recorded.began_s is None and plan.web is not None and locust.status == 0:
        raise NothingRun("No run was started on Locust's page, so there is no report.")
    if recorded.began_s is None:
        said = "\n".join(line for line in locust.last_words() if line.strip())
        raise RunFailed(f"Locust did not start (status {locust.status}):\n{said}")
    if locust.status not in _USUAL:
        console.print(f"Locust ended with status {locust.status}; the report covers the run until then.")
    if recorded.late_s:
        late_s = percentile(sorted(recorded.late_s), 0.95)
        about["client late"] = f"{1000 * late_s:.1f} ms (95 of 100 moments)"
    return LoadRun(
        name=f"{plan.shape}, {plan.users} users",
        began_at=began_at,
        duration_s=max((each.at_s + (each.ended_s or 0.0) for each in recorded.results), default=0.0),
        results=sorted(recorded.results, key=lambda each: each.at_s),
        samples=gathering.samples,
        slo=dict(plan.slo or {}),
        about=about,
    )


def _command(plan: Plan, stack: FreshStack, kinds: dict[str, int], tenants: Path) -> list[str]:
    options = {
        **(plan.options or {}),
        "shape": plan.shape,
        "kinds": kinds_text(kinds),
        "tenants": str(tenants),
        "grpc-address": stack.grpc_address,
    }
    if plan.url is not None and plan.model:
        options["model"] = plan.model
    return locust_command(
        stack.url, plan.users, plan.duration_s, plan.out, options, plan.flags, plan.web, plan.extra
    )


def _wanted(plan: Plan, stack: FreshStack, key: str) -> dict[str, int]:
    """Without a choice, the kinds that the target can answer; a choice that it cannot is refused."""
    target = find_target(stack.url, key, plan.model or "" if plan.url is not None else "")
    impossible = set()
    if not target.embeddings:
        impossible.add("embeddings")
    if not target.text:
        impossible |= KINDS.keys() - {"embeddings"}
    if not stack.grpc_address:
        impossible.add("triton")
    if plan.kinds is None:
        return {kind: weight for kind, weight in KINDS.items() if kind not in impossible}
    if refused := sorted(impossible & plan.kinds.keys()):
        raise RunFailed(f"no model at {stack.url} can answer {', '.join(refused)}; leave that out of --kinds")
    return plan.kinds


def _watch(locust: LocustProcess, reader: RecordReader, plan: Plan, console: Console) -> None:
    """Until Locust has ended; Ctrl-C ends it, and what there is goes into the report."""
    if plan.web is not None:
        console.print(f"Locust's page: {plan.web.url}  (Ctrl-C here ends it and writes the report)")
        console.print(f"  user {USER}, password {plan.web.password}", highlight=False)
    pulse, watching = Pulse(), ProgressLine(console)
    try:
        with watching.shown():
            while not locust.wait(_LOOK_INTERVAL_S):
                pulse.take(reader.read())
                if (began_s := reader.recorded.began_s) is not None:
                    users = sum(reader.recorded.users.values())
                    watching.show(pulse.line(time.perf_counter() - began_s, users))
    except KeyboardInterrupt:
        console.print("Stopping; answers in flight may take a moment ...", highlight=False)
    finally:
        with suppress(KeyboardInterrupt):  # a second Ctrl-C does not wait for them
            locust.stop()


def _about(plan: Plan, stack: FreshStack, key: str, kinds: dict[str, int]) -> dict[str, str]:
    about = {**about_machine(), **about_server(stack.url, key)}
    if stack.triton_address:
        about |= about_triton(stack.triton_address)
    about["load"] = f"Locust, {plan.shape}, up to {plan.users} users, {plan.duration_s:g} s"
    about["kinds"] = kinds_text(kinds)
    about["command"] = shlex.join(["inflight", *sys.argv[1:]])
    return about


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: with a report, and without a stack left behind."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def renamed(run: LoadRun, name: str) -> LoadRun:
    return replace(run, name=name) if name else run
