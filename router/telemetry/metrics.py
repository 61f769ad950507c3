"""The router's own Prometheus metrics."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from router.control.objectives.monitor import ObjectiveMonitor
from router.telemetry.admission import AdmissionCounters
from router.telemetry.shadow import ShadowMetrics
from router.telemetry.values import Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

_VERSION = version("inflight")  # read from disk, once
_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LONG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# Stages of models that answer within milliseconds are shorter than those.
_STAGE_S = (0.0005, 0.001, 0.0025, *_LONG_S)
_WHO = ("model", "release", "tenant")


class LookedUp(Collector):
    """A collector that looks at what the event loop changes: what it `take`s there is told by a thread."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._taken: list[Metric] | None = None

    def take(self) -> None:
        self._taken = list(self._collector.collect())

    def collect(self) -> Iterable[Metric]:
        taken, self._taken = self._taken, None
        return self._collector.collect() if taken is None else taken


class Metrics:
    """Label values come from the settings, never from a client, so their number is bounded."""

    def __init__(self, monitor: ObjectiveMonitor | None = None) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        registry = self.registry
        self.requests = Counter(
            "inflight_requests", "Requests answered.", ("route", "status", *_WHO), registry=registry
        )
        self.held_refusals = Counter(
            "inflight_held_refusals",
            "Refusals delayed, for tenants that retry immediately.",
            ("tenant",),
            registry=registry,
        )
        self.ended = Counter(
            "inflight_requests_ended",
            "Accepted requests by how they ended: finished, failed, cancelled.",
            ("outcome", *_WHO),
            registry=registry,
        )
        self.in_flight = Gauge(
            "inflight_requests_in_flight", "Accepted requests that have not ended.", _WHO, registry=registry
        )
        self.first_token = Histogram(
            "inflight_time_to_first_token_seconds",
            "Time from arrival to the first token.",
            _WHO,
            buckets=_LONG_S,
            registry=registry,
        )
        self.between_chunks = Histogram(
            "inflight_inter_chunk_seconds",
            "Time between two chunks of one answer.",
            _WHO,
            buckets=_SHORT_S,
            registry=registry,
        )
        self.duration = Histogram(
            "inflight_request_seconds",
            "Time from arrival to the end of an accepted request.",
            _WHO,
            buckets=_LONG_S,
            registry=registry,
        )
        self.stages = Histogram(
            "inflight_stage_seconds",
            "Time of accepted requests by stage; the stages of a request add up to its total time.",
            ("stage", *_WHO),
            buckets=_STAGE_S,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "inflight_prompt_tokens", "Tokens of prompts and embedded texts.", _WHO, registry=registry
        )
        self.completion_tokens = Counter(
            "inflight_completion_tokens", "Tokens generated.", _WHO, registry=registry
        )
        self.triton_errors = Counter(
            "inflight_triton_errors",
            "Errors from Triton or the engine.",
            ("kind", "model"),
            registry=registry,
        )
        self.loop_stalls = Histogram(
            "inflight_event_loop_stall_seconds",
            "Time the event loop took to answer a probe, which is sent 20 times a second.",
            (),
            buckets=_SHORT_S,
            registry=registry,
        ).labels()
        self.objectives = monitor or ObjectiveMonitor()
        self.admission = AdmissionCounters(registry)
        self.shadows = ShadowMetrics(registry)
        prometheus_client.Info("inflight_build", "The version of this router.", registry=registry).info(
            {"version": _VERSION}
        )
        self._looked_up: list[LookedUp] = []
        self._rendering = asyncio.Lock()

    def expose(self, *collectors: Collector) -> None:
        """What is looked up only when Prometheus asks."""
        for each in map(LookedUp, collectors):
            self._looked_up.append(each)
            self.registry.register(each)

    async def page(self) -> bytes:
        """As Prometheus reads it; written by a thread, since with many tenants it is long."""
        async with self._rendering:
            for each in self._looked_up:
                each.take()
            return await asyncio.to_thread(self.render)

    def render(self) -> bytes:
        return generate_latest(self.registry)
