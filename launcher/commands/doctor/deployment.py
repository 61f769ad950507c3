"""Judges a router that runs, by what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from launcher.commands.doctor.finding import Finding, failure, fine, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.commands.top.scrape import Scrape

_KEPT = 0.95
_BUSY = 0.9
_FILES_FULL = 0.8


@dataclass(frozen=True)
class ProbeResult:
    """What became of a tiny request to one model; `status` is 0 where there was no answer."""

    model: str
    status: int
    took_s: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class DeploymentFacts:
    """Of one router; `metrics` is None where it does not show them to this key."""

    url: str
    is_live: bool
    why_not_live: str = ""
    is_ready: bool = False
    models: Mapping[str, bool] = field(default_factory=dict)
    metrics: Scrape | None = None
    why_no_metrics: str = ""
    answers: tuple[ProbeResult, ...] = ()
    tritons: Mapping[str, str] = field(default_factory=dict)  # by address, what is wrong with it, or nothing


def judge_deployment(facts: DeploymentFacts, own_version: str) -> list[Finding]:
    if not facts.is_live:
        advice = "start it with `inflight up`, or name it with --url"
        return [failure("live", f"nothing answers at {facts.url}: {facts.why_not_live}", advice)]
    found = [
        fine("live", f"{facts.url} answers"),
        judge_ready(facts),
        *map(judge_answer, facts.answers),
        *(judge_triton(url, problem) for url, problem in facts.tritons.items()),
    ]
    if facts.metrics is None:
        return [*found, skipped("metrics", facts.why_no_metrics)]
    return [*found, *judge_metrics(facts.metrics, own_version)]


def judge_ready(facts: DeploymentFacts) -> Finding:
    down = [name for name, is_ready in facts.models.items() if not is_ready]
    if not facts.is_ready:
        what = f"not ready: {', '.join(down)}" if down else "not ready"
        advice = "check router.log and triton.log of the run; loading a model takes a while"
        return failure("ready", what, advice)
    if down:
        advice = "inflight release status MODEL shows its state"
        return warning("ready", f"ready, except {', '.join(down)}", advice)
    return fine("ready", f"with {', '.join(facts.models) or 'its models'}")


def judge_answer(answer: ProbeResult) -> Finding:
    check = f"model {answer.model}"
    if answer.status == 200:
        return fine(check, f"answered in {1000 * answer.took_s:.0f} ms")
    if answer.status in (401, 403):
        return skipped(check, "not tested: give a key with the scope inference (--key)")
    if answer.status in (400, 404):
        return skipped(check, "it serves neither text nor embeddings: test it with a Triton client")
    what = f"status {answer.status}: {answer.message}" if answer.status else f"no answer: {answer.message}"
    advice = (
        "429: limits of the key; 503: overloaded or failing, see below, or triton.log and router.log "
        "of the run"
    )
    return failure(check, what, advice)


def judge_triton(url: str, problem: str) -> Finding:
    if problem:
        return warning("Triton", problem, "it may be starting; otherwise check triton.log of its run")
    return fine("Triton", f"serves its metrics at {url}")


def judge_metrics(metrics: Scrape, own_version: str) -> list[Finding]:
    return [
        judge_version(metrics, own_version),
        *judge_replicas(metrics),
        judge_restarts(metrics),
        judge_objectives(metrics),
        judge_load(metrics),
        judge_costs(metrics),
        judge_reachable(metrics, "store", "inflight_store_reachable"),
        judge_reachable(metrics, "Redis", "inflight_redis_reachable"),
        judge_files(metrics),
    ]


def judge_version(metrics: Scrape, own: str) -> Finding:
    running = {labels.get("version", "") for labels, _ in metrics.each("inflight_build_info")}
    if not running:
        return skipped("version", "it does not report its version")
    found = ", ".join(sorted(running))
    if running != {own}:
        advice = "restart it with this version, or use the commands of that version"
        return warning("version", f"{found} is running, this is {own}", advice)
    return fine("version", found)


def judge_replicas(metrics: Scrape) -> list[Finding]:
    """Each release that has lost some; one line where none has."""
    found, count = [], 0
    for model, release in sorted(metrics.label_values("inflight_replica_up", "model", "release")):
        values = list(metrics.each("inflight_replica_up", model=model, release=release))
        down = [labels["replica"] for labels, value in values if not value]
        count += len(values) - len(down)
        check, advice = f"replicas of {model}@{release}", "check the log of that Triton server"
        if down and len(down) == len(values):
            found.append(failure(check, f"none is up ({', '.join(down)} down)", advice))
        elif down:
            found.append(warning(check, f"{', '.join(down)} of {len(values)} down", advice))
    return found or [
        fine("replicas", f"all {count} are up") if count else skipped("replicas", "there are none")
    ]


def judge_restarts(metrics: Scrape) -> Finding:
    revived = int(metrics.value("inflight_model_revivals_total") or 0)
    began_s = metrics.value("process_start_time_seconds")
    up = "" if began_s is None else f" since it was started {told_span(metrics.at_s - began_s)} ago"
    if revived:
        what = f"models were reloaded {revived} times after their process died{up}"
        return warning("restarts", what, "each is a crash: triton.log of the run says which")
    return fine("restarts", f"no model process died{up}")


def judge_objectives(metrics: Scrape) -> Finding:
    kept = list(metrics.each("inflight_objective_attained_ratio"))
    if not kept:
        return skipped("objectives", "none are set: inflight slo set MODEL --first-token 500ms")
    missed = [
        f"{labels['model']} {labels['tier']} {labels['metric']} {value:.0%}"
        for labels, value in kept
        if value < _KEPT
    ]
    if missed:
        advice = "see `inflight slo show`, then docs/scheduling.md to tell overload from a fault"
        return warning("objectives", f"missed: {', '.join(missed)}", advice)
    return fine("objectives", f"all {len(kept)} are met")


def judge_load(metrics: Scrape) -> Finding:
    waiting = int(metrics.value("inflight_waiting_requests") or 0)
    busy = max((value for _, value in metrics.each("inflight_replica_busy_ratio")), default=0.0)
    wanted = int(metrics.value("inflight_wanted_replicas") or 0)
    if waiting and busy > _BUSY:
        advice = f"add replicas ({wanted} are wanted), or reduce the load"
        return warning("load", f"{waiting} requests are waiting and the engine is always busy", advice)
    return fine("load", f"{waiting} requests are waiting, the busiest engine is busy {busy:.0%} of the time")


def judge_costs(metrics: Scrape) -> Finding:
    frozen = [
        labels["replica"] for labels, value in metrics.each("inflight_replica_step_cost_frozen") if value
    ]
    if frozen:
        advice = "check what else runs on that machine; until then forecasts use the last good step cost"
        return warning("step cost", f"{', '.join(frozen)}: step times differ from the predictions", advice)
    return fine("step cost", "predictions hold")


def judge_reachable(metrics: Scrape, what: str, name: str) -> Finding:
    value = metrics.value(name)
    if value is None:
        return skipped(f"{what}, as the router sees it", "not used")
    if not value:
        advice = (
            "check it and the network to it; until then usage records are kept on disk"
            if what == "store"
            else ("check it; until it answers, each router counts limits and slots on its own")
        )
        return failure(f"{what}, as the router sees it", "it does not answer", advice)
    return fine(f"{what}, as the router sees it", "it answers")


def told_span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def judge_files(metrics: Scrape) -> Finding:
    used, most = metrics.value("process_open_fds"), metrics.value("process_max_fds")
    if not used or not most:
        return skipped("its open files", "not known")
    if used > _FILES_FULL * most:
        return warning("its open files", f"{used:.0f} of {most:.0f}", "raise ulimit -n and restart it")
    return fine("its open files", f"{used:.0f} of {most:.0f}")
