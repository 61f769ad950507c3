"""What `inflight top` shows, as values: made of two looks at the router's metrics, and at Triton's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadtest.results import STAGES
from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.commands.top.scrape import ScrapeDelta

TIERS = tuple(tier.label for tier in Tier)
_MOST_TENANTS = 10
_FIRST_REFUSED_STATUS = 400


@dataclass(frozen=True)
class Release:
    """One release of a model. None is what nobody measured."""

    model: str
    release: str
    share: float | None
    in_flight: int
    waiting: Mapping[str, int]
    requests_per_s: float
    tokens_per_s: float
    first_token_p50_s: float | None
    first_token_p95_s: float | None
    inter_token_p95_s: float | None
    attained: float | None  # of the objective that is kept worst
    occupancy: float | None
    busy: float | None
    kv: float | None
    drain_s: float | None
    replicas: int
    replicas_up: int


@dataclass(frozen=True)
class Tenant:
    tenant: str
    requests_per_s: float
    tokens_per_s: float
    in_flight: int
    noisy: float | None  # so many times its share


@dataclass(frozen=True)
class Stage:
    stage: str
    mean_s: float
    part: float


@dataclass(frozen=True)
class Trouble:
    """What was refused or went wrong, and how often."""

    what: str
    count: int


@dataclass(frozen=True)
class Engine:
    """What one model says of itself on Triton's port."""

    model: str
    active: int
    waiting: int
    limit: int
    kv: float | None
    busy: float
    inter_token_p95_s: float | None
    preemptions: int
    paused: int = 0


@dataclass(frozen=True)
class View:
    seconds: float
    version: str = ""
    up_s: float | None = None
    is_ready: bool | None = None
    cpu: float = 0.0
    memory_bytes: int = 0
    other_routers: int | None = None
    releases: list[Release] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)


def view_of(router: ScrapeDelta, triton: ScrapeDelta | None = None, is_ready: bool | None = None) -> View:
    now = router.new
    version = next((found.get("version", "") for found, _ in now.each("inflight_build_info")), "")
    began_s = now.value("process_start_time_seconds")
    routers = now.value("inflight_other_routers")
    return View(
        seconds=router.seconds,
        version=version,
        up_s=None if began_s is None else max(now.at_s - began_s, 0.0),
        is_ready=is_ready,
        cpu=router.rate("process_cpu_seconds_total"),
        memory_bytes=int(now.value("process_resident_memory_bytes") or 0),
        other_routers=None if routers is None else int(routers),
        releases=[_release(router, *which) for which in sorted(_known(router))],
        tenants=_tenants(router),
        stages=_stages(router),
        troubles=_troubles(router),
        engines=[] if triton is None else _engines(triton),
    )


def _known(router: ScrapeDelta) -> set[tuple[str, ...]]:
    names = ("inflight_replica_up", "inflight_release_share", "inflight_requests_in_flight")
    found = {which for name in names for which in router.new.label_values(name, "model", "release")}
    return {which for which in found if which[0]}


def _release(router: ScrapeDelta, model: str, release: str) -> Release:
    now, which = router.new, {"model": model, "release": release}
    ups = [value for _, value in now.each("inflight_replica_up", **which)]
    budget = now.value("inflight_kv_budget_tokens", **which)
    reserved = now.value("inflight_kv_reserved_tokens", **which)
    attained = [value for _, value in now.each("inflight_objective_attained_ratio", model=model)]
    first_token, between = "inflight_time_to_first_token_seconds", "inflight_inter_chunk_seconds"
    return Release(
        model=model,
        release=release,
        share=now.value("inflight_release_share", **which),
        in_flight=int(now.value("inflight_requests_in_flight", **which) or 0),
        waiting={
            tier: int(now.value("inflight_waiting_requests", **which, tier=tier) or 0) for tier in TIERS
        },
        requests_per_s=router.rate("inflight_requests_ended_total", **which),
        tokens_per_s=router.rate("inflight_completion_tokens_total", **which),
        first_token_p50_s=router.quantile(first_token, 0.5, **which),
        first_token_p95_s=router.quantile(first_token, 0.95, **which),
        inter_token_p95_s=router.quantile(between, 0.95, **which),
        attained=min(attained) if attained else None,
        occupancy=_mean(router, "inflight_replica_batch_occupancy_ratio", which),
        busy=_mean(router, "inflight_replica_busy_ratio", which),
        kv=reserved / budget if reserved is not None and budget else None,
        drain_s=now.value("inflight_drain_seconds", **which),
        replicas=len(ups),
        replicas_up=sum(value > 0 for value in ups),
    )


def _mean(router: ScrapeDelta, name: str, which: Mapping[str, str]) -> float | None:
    values = [value for _, value in router.new.each(name, **which)]
    return sum(values) / len(values) if values else None


def _tenants(router: ScrapeDelta) -> list[Tenant]:
    """Those that use most; who is noisy is among them whatever it uses."""
    now = router.new
    noisy: dict[str, float] = {}
    for found, value in now.each("inflight_noisy_tenant_ratio"):
        noisy[found["tenant"]] = max(value, noisy.get(found["tenant"], 0.0))
    names = {tenant for (tenant,) in now.label_values("inflight_requests_ended_total", "tenant") if tenant}
    found_tenants = [
        Tenant(
            tenant,
            router.rate("inflight_requests_ended_total", tenant=tenant),
            router.rate("inflight_prompt_tokens_total", tenant=tenant)
            + router.rate("inflight_completion_tokens_total", tenant=tenant),
            int(now.value("inflight_requests_in_flight", tenant=tenant) or 0),
            noisy.get(tenant),
        )
        for tenant in names | noisy.keys()
    ]
    found_tenants.sort(
        key=lambda each: (each.noisy is None, -each.tokens_per_s, -each.in_flight, each.tenant)
    )
    return found_tenants[:_MOST_TENANTS]


def _stages(router: ScrapeDelta) -> list[Stage]:
    """Where the time of the requests went that ended meanwhile."""
    name = "inflight_stage_seconds"
    sums = {stage: router.grown(f"{name}_sum", stage=stage) for stage in STAGES}
    counts = {stage: router.grown(f"{name}_count", stage=stage) for stage in STAGES}
    whole = sum(sums.values())
    if whole <= 0:
        return []
    return [
        Stage(stage, sums[stage] / counts[stage], sums[stage] / whole) for stage in STAGES if counts[stage]
    ]


def _troubles(router: ScrapeDelta) -> list[Trouble]:
    counted: dict[str, float] = {}

    def add(name: str, words: str, *labels: str) -> None:
        for values in router.new.label_values(name, *labels):
            which = dict(zip(labels, values, strict=True))
            if grown := router.grown(name, **which):
                counted[words.format(**which)] = grown

    for status, route in router.new.label_values("inflight_requests_total", "status", "route"):
        if status.isdigit() and int(status) >= _FIRST_REFUSED_STATUS:
            grown = router.grown("inflight_requests_total", status=status, route=route)
            if grown:
                counted[f"{status} at {route}"] = grown
    add("inflight_refused_requests_total", "refused: {reason}, {model} {tier}", "reason", "model", "tier")
    add("inflight_triton_errors_total", "Triton: {kind}, {model}", "kind", "model")
    add("inflight_retries_total", "sent again: {model}", "model")
    add("inflight_model_revivals_total", "died and reloaded: {model} on {replica}", "model", "replica")
    found = [Trouble(what, round(count)) for what, count in counted.items()]
    return sorted(found, key=lambda each: (-each.count, each.what))


def _engines(triton: ScrapeDelta) -> list[Engine]:
    requests, blocks = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
    now = triton.new

    def count(model: str, kind: str) -> int:
        return int(now.value(requests, model=model, request_type=kind) or 0)

    return [
        Engine(
            model=model,
            active=count(model, "active"),
            waiting=count(model, "waiting"),
            limit=int(now.value("inflight_engine_batch_limit_sequences", model=model) or count(model, "max")),
            kv=now.value(blocks, model=model, kv_cache_block_type="fraction"),
            busy=min(triton.rate("inflight_engine_busy_seconds_total", model=model), 1.0),
            inter_token_p95_s=triton.quantile("inflight_engine_inter_token_seconds", 0.95, model=model),
            preemptions=int(triton.grown("inflight_engine_preemptions_total", model=model)),
            paused=int(now.value("inflight_engine_paused_sequences", model=model) or 0),
        )
        for (model,) in sorted(now.label_values(requests, "model"))
    ]
