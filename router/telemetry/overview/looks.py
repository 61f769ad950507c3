"""What the router has counted up to one moment, and what happened between two of them."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.telemetry.metrics import Metrics

Release = tuple[str, str]  # model and version
_FAILED = ("4", "5")


@dataclass(slots=True)
class Counted:
    """Of one release since the router began; the lists are counts by bucket."""

    in_flight: float = 0.0
    ended: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    first_token: list[int] = field(default_factory=list)
    between_chunks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class TenantCounted:
    in_flight: float = 0.0
    ended: float = 0.0
    tokens: float = 0.0


@dataclass(slots=True)
class Look:
    at_s: float
    cpu_s: float
    releases: dict[Release, Counted]
    tenants: dict[str, TenantCounted]
    stages: dict[str, tuple[float, int]]  # their sums, and how many
    troubles: dict[tuple[str, str], float]  # by status and route
    judged: dict[str, tuple[int, int]]  # by model: with an objective, and of those the ones that missed it


def take_look(metrics: Metrics, at_s: float) -> Look:
    """Adds up what is counted by model, release and tenant: on the event loop, which alone changes it."""
    releases: dict[Release, Counted] = defaultdict(Counted)
    tenants: dict[str, TenantCounted] = defaultdict(TenantCounted)
    for (model, release, tenant), flying in metrics.in_flight.items():
        releases[model, release].in_flight += flying.value
        tenants[tenant].in_flight += flying.value
    for (_, model, release, tenant), ended in metrics.ended.items():
        releases[model, release].ended += ended.value
        tenants[tenant].ended += ended.value
    for (model, release, tenant), read in metrics.prompt_tokens.items():
        releases[model, release].prompt_tokens += read.value
        tenants[tenant].tokens += read.value
    for (model, release, tenant), written in metrics.completion_tokens.items():
        releases[model, release].completion_tokens += written.value
        tenants[tenant].tokens += written.value
    for (model, release, _), observed in metrics.first_token.items():
        counted = releases[model, release]
        counted.first_token = _added(counted.first_token, observed.counts)
    for (model, release, _), observed in metrics.between_chunks.items():
        counted = releases[model, release]
        counted.between_chunks = _added(counted.between_chunks, observed.counts)
    return Look(
        at_s,
        time.process_time(),
        dict(releases),
        dict(tenants),
        _stages(metrics),
        _troubles(metrics),
        _judged(metrics),
    )


def _added(left: list[int], right: list[int]) -> list[int]:
    return [one + other for one, other in zip(left, right, strict=True)] if left else list(right)


def _stages(metrics: Metrics) -> dict[str, tuple[float, int]]:
    found: dict[str, tuple[float, int]] = {}
    for (stage, *_), observed in metrics.stages.items():
        total_s, count = found.get(stage, (0.0, 0))
        found[stage] = (total_s + observed.total, count + sum(observed.counts))
    return found


def _troubles(metrics: Metrics) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = defaultdict(float)
    for (route, status, *_), answered in metrics.requests.items():
        if status.startswith(_FAILED):
            found[status, route] += answered.value
    return dict(found)


def _judged(metrics: Metrics) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for model, _, series in metrics.objectives.all_series():
        for each in (series.first_token, series.inter_token, series.end_to_end):
            judged, missed = found.get(model, (0, 0))
            found[model] = (judged + each.judged, missed + each.missed)
    return found


def grown(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """By bucket; what was not there before began with nothing."""
    return [after - before for before, after in zip(old, new, strict=True)] if old else list(new)


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """Within a bucket the values lie evenly; above the last bound nothing is known, so it is that bound."""
    total = sum(counts)
    if total <= 0:
        return None
    rank, below = part * total, 0
    for (low, high), count in zip(pairwise((0.0, *bounds)), counts, strict=False):
        if below + count >= rank:
            return low + (high - low) * (rank - below) / count if count else low
        below += count
    return bounds[-1]
