"""The metrics of one model version on Triton's metrics port: the contract's families, and latencies.

Setting or observing one value is a round trip to the server process (about 30 µs), so a gauge is set only
when it has changed, and gaps between tokens are observed once a response, not once a token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.engine.report import SIZES, Gauges, PerfMetrics, Ready
from python_backend.triton_adapter import pb
from python_backend.triton_adapter.running_requests import RunningRow
from python_backend.wire.tiers import Tier

_TOKEN_BUCKETS = (10, 50, 100, 500, 1000)
_SECOND_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60),
)

_log = logging.getLogger("inflight.tensorrt_llm")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric for each value of `label`; a single one where there is no label."""

    kind: str  # the name of one of the kinds of Triton's MetricFamily
    description: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = field(default=())


_TIERS = tuple(tier.name.lower() for tier in Tier)
_SIZES = tuple(map(str, SIZES))
FAMILIES = {
    "nv_trt_llm_request_metrics": Family(
        "GAUGE",
        "TRT LLM request metrics",
        "request_type",
        ("active", "max", "scheduled", "context", "waiting"),
    ),
    "nv_trt_llm_runtime_memory_metrics": Family(
        "GAUGE", "TRT LLM runtime memory metrics", "memory_type", ("cpu", "gpu", "pinned")
    ),
    "nv_trt_llm_kv_cache_block_metrics": Family(
        "GAUGE",
        "TRT LLM KV cache block metrics",
        "kv_cache_block_type",
        ("max", "free", "used", "tokens_per", "reused", "fraction"),
    ),
    "nv_trt_llm_inflight_batcher_metrics": Family(
        "GAUGE",
        "TRT LLM inflight_batcher-specific metrics",
        "inflight_batcher_specific_metric",
        ("total_context_tokens", "generation_requests", "micro_batch_id", "paused_requests"),
    ),
    "nv_trt_llm_v1_metrics": Family(
        "GAUGE",
        "TRT LLM v1-specific metrics",
        "v1_specific_metric",
        ("total_context_tokens", "total_generation_tokens", "empty_generation_slots"),
    ),
    "nv_trt_llm_general_metrics": Family(
        "GAUGE", "General TRT LLM metrics", "general_type", ("timestamp", "iteration_counter")
    ),
    "nv_trt_llm_disaggregated_serving_metrics": Family(
        "COUNTER",
        "TRT LLM disaggregated serving metrics",
        "disaggregated_serving_type",
        ("kv_cache_transfer_ms", "request_count"),
    ),
    "nv_llm_input_token_len": Family(
        "HISTOGRAM",
        "TRT LLM response metrics",
        "response_metric_type",
        ("total_input_tokens",),
        _TOKEN_BUCKETS,
    ),
    "nv_llm_output_token_len": Family(
        "HISTOGRAM",
        "TRT LLM response metrics",
        "response_metric_type",
        ("total_output_tokens",),
        _TOKEN_BUCKETS,
    ),
    "inflight_engine_time_to_first_token_seconds": Family(
        "HISTOGRAM",
        "Time from a row's arrival in tensorrt_llm to its first token",
        "tier",
        _TIERS,
        _SECOND_BUCKETS,
    ),
    "inflight_engine_inter_token_seconds": Family(
        "HISTOGRAM", "Mean time between tokens, one observation per response", buckets=_SECOND_BUCKETS
    ),
    "inflight_engine_queue_seconds": Family(
        "HISTOGRAM",
        "Time from a row's arrival in tensorrt_llm to its first step",
        "tier",
        _TIERS,
        _SECOND_BUCKETS,
    ),
    "inflight_engine_batch_limit_sequences": Family("GAUGE", "Limit of sequences in one step"),
    "inflight_engine_step_limit_tokens": Family("GAUGE", "Limit of tokens in one step"),
    "inflight_engine_cached_blocks": Family("GAUGE", "Free blocks that still hold a cached prefix"),
    "inflight_engine_preemptions_total": Family("COUNTER", "Sequences preempted to make room for others"),
    "inflight_engine_paused_sequences": Family("GAUGE", "Started sequences that are paused"),
    "inflight_engine_pauses_total": Family(
        "COUNTER", "Sequences paused in favour of tenants below their share"
    ),
    "inflight_engine_reused_blocks_total": Family("COUNTER", "Blocks found in the prefix cache"),
    "inflight_engine_host_blocks": Family("GAUGE", "Blocks of prefixes cached in host memory"),
    "inflight_engine_recalled_blocks_total": Family("COUNTER", "Blocks copied back from host memory"),
    "inflight_engine_step_cost_seconds": Family(
        "GAUGE",
        "Learned step cost: base, and per token, sequence or 1,000 cached tokens",
        "coefficient",
        tuple(each.name.removesuffix("_ms") for each in fields(StepCost)),
    ),
    "inflight_engine_step_cost_error_ratio": Family("GAUGE", "Relative error of predicted step times"),
    "inflight_engine_step_cost_frozen": Family("GAUGE", "1 while predictions are too wrong to be used"),
    "inflight_engine_busy_seconds_total": Family("COUNTER", "Time during which steps were running"),
    "inflight_engine_steps_total": Family(
        "COUNTER", "Steps by size: up to this many tokens, more than the next smaller size", "tokens", _SIZES
    ),
    "inflight_engine_step_seconds_total": Family("COUNTER", "Total time of steps by size", "tokens", _SIZES),
    "inflight_engine_adapters": Family("GAUGE", "Loaded LoRA adapters"),
    "inflight_engine_adapter_loads_total": Family(
        "COUNTER", "Loads of LoRA adapters, including repeated ones"
    ),
    "inflight_engine_draft_tokens_total": Family("COUNTER", "Draft tokens verified"),
    "inflight_engine_accepted_draft_tokens_total": Family("COUNTER", "Draft tokens accepted"),
    "inflight_engine_sequence_steps_total": Family("COUNTER", "Sequence steps that produced tokens"),
    "inflight_engine_generated_tokens_total": Family("COUNTER", "Generated tokens"),
}
# Counters over the engine's life -> the fields of its gauges.
_COUNTED = {
    "inflight_engine_preemptions_total": "preemptions",
    "inflight_engine_pauses_total": "pauses",
    "inflight_engine_reused_blocks_total": "reused_blocks",
    "inflight_engine_recalled_blocks_total": "recalled_blocks",
    "inflight_engine_adapter_loads_total": "adapter_loads",
    "inflight_engine_draft_tokens_total": "drafted_tokens",
    "inflight_engine_accepted_draft_tokens_total": "accepted_drafts",
    "inflight_engine_sequence_steps_total": "sequence_steps",
    "inflight_engine_generated_tokens_total": "generated_tokens",
}
_ONLY_IN_FLIGHT, _ONLY_STATIC = "nv_trt_llm_inflight_batcher_metrics", "nv_trt_llm_v1_metrics"


class EngineMetrics:
    """Metrics of one model version; the objects must stay alive for Triton to show them."""

    def __init__(self, model: str, version: str, static_batching: bool) -> None:
        self._families: list[Any] = []
        self._metrics: dict[tuple[str, str], Any] = {}
        self._shown: dict[tuple[str, str], float] = {}
        left_out = _ONLY_IN_FLIGHT if static_batching else _ONLY_STATIC
        for name, family in FAMILIES.items():
            if name != left_out:
                self._register(name, family, {"model": model, "version": version})

    def _register(self, name: str, family: Family, labels: Mapping[str, str]) -> None:
        families = pb.utils().MetricFamily
        created = families(name=name, description=family.description, kind=getattr(families, family.kind))
        self._families.append(created)
        more = {"buckets": list(family.buckets)} if family.buckets else {}
        for value in family.values:
            own = {family.label: value} if family.label else {}
            self._metrics[name, value] = created.Metric(labels={**labels, **own}, **more)

    def update(self, capacity: Ready, now: Gauges) -> None:
        for name, values in _gauge_values(capacity, now).items():
            for value, number in values.items():
                key = (name, value)
                if key in self._metrics and self._shown.get(key) != number:
                    self._metrics[key].set(number)
                    self._shown[key] = number
        self._count("inflight_engine_busy_seconds_total", now.busy_ns / 1e9)
        for name, counted in _COUNTED.items():
            self._count(name, getattr(now, counted))
        for size, steps, took_ns in zip(_SIZES, now.sized_steps, now.sized_ns, strict=False):
            self._count("inflight_engine_steps_total", steps, size)
            self._count("inflight_engine_step_seconds_total", took_ns / 1e9, size)

    def first_token(self, tier: Tier, waited_ns: int) -> None:
        self._observe("inflight_engine_time_to_first_token_seconds", waited_ns / 1e9, tier.name.lower())

    def between_tokens(self, mean_gap_s: float | None) -> None:
        if mean_gap_s is not None:
            self._observe("inflight_engine_inter_token_seconds", mean_gap_s)

    def row_ended(self, row: RunningRow, perf: PerfMetrics | None) -> None:
        generation = row.call.generation
        self._observe("nv_llm_input_token_len", len(generation.prompt_ids), "total_input_tokens")
        self._observe("nv_llm_output_token_len", row.output_tokens, "total_output_tokens")
        if perf is not None and perf.first_scheduled_ns:
            waited_s = (perf.first_scheduled_ns - perf.arrival_ns) / 1e9
            self._observe("inflight_engine_queue_seconds", waited_s, generation.tier.name.lower())

    def close(self) -> None:
        """Metrics go before their families: the other order ends the stub with a fault."""
        self._metrics.clear()
        self._families.clear()

    def _observe(self, name: str, number: float, value: str = "") -> None:
        try:
            self._metrics[name, value].observe(number)
        except Exception:  # a figure is missing then, and nothing else
            _log.exception("the metric %s could not be observed", name)

    def _count(self, name: str, total: float, value: str = "") -> None:
        """`total` is over the engine's life; one that was started again begins at 0."""
        before = self._shown.get((name, value), 0)
        if total != before:
            self._metrics[name, value].increment(total - before if total > before else total)
            self._shown[name, value] = total


def _gauge_values(capacity: Ready, now: Gauges) -> dict[str, dict[str, float]]:
    generation_requests = now.scheduled - now.context
    return {
        "nv_trt_llm_request_metrics": {
            "active": now.active,
            "max": now.max_batch_size or capacity.max_batch_size,
            "scheduled": now.scheduled,
            "context": now.context,
            "waiting": max(0, now.active - now.scheduled),
        },
        "nv_trt_llm_runtime_memory_metrics": {
            "cpu": now.memory_bytes,
            "gpu": now.gpu_memory_bytes,
            "pinned": now.pinned_memory_bytes,
        },
        "nv_trt_llm_kv_cache_block_metrics": {
            "max": now.total_blocks,
            "free": now.total_blocks - now.used_blocks,
            "used": now.used_blocks,
            "tokens_per": capacity.tokens_per_block,
            "reused": now.reused_blocks,
            "fraction": now.used_blocks / now.total_blocks,
        },
        "nv_trt_llm_inflight_batcher_metrics": {
            "total_context_tokens": now.context_tokens,
            "generation_requests": generation_requests,
            "micro_batch_id": 0,
            "paused_requests": now.paused,
        },
        "nv_trt_llm_v1_metrics": {
            "total_context_tokens": now.context_tokens,
            "total_generation_tokens": generation_requests,
            "empty_generation_slots": capacity.max_batch_size - now.scheduled,
        },
        "nv_trt_llm_general_metrics": {
            "timestamp": time.time_ns() // 1000,
            "iteration_counter": now.step_count,
        },
        "inflight_engine_batch_limit_sequences": {"": now.max_batch_size},
        "inflight_engine_step_limit_tokens": {"": now.max_step_tokens},
        "inflight_engine_host_blocks": {"": now.host_blocks},
        "inflight_engine_cached_blocks": {"": now.cached_blocks},
        "inflight_engine_paused_sequences": {"": now.paused},
        "inflight_engine_adapters": {"": now.adapters},
        **_cost_values(now.learned),
    }


def _cost_values(learned: LearnedStepCost | None) -> dict[str, dict[str, float]]:
    """Rounded: they change a little with each step, and to set one costs more than that is worth."""
    if learned is None:
        return {}
    cost = {
        name.removesuffix("_ms"): float(f"{value / 1e3:.3g}") for name, value in asdict(learned.cost).items()
    }
    return {
        "inflight_engine_step_cost_seconds": cost,
        "inflight_engine_step_cost_error_ratio": {"": round(learned.error, 3)},
        "inflight_engine_step_cost_frozen": {"": learned.is_frozen},
    }
