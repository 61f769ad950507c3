"""The `nv_trt_llm_*` gauges on Triton's metrics port, with the names and labels of the contract."""

from __future__ import annotations

from typing import Any

from python_backend.engine.messages import Gauges, Ready
from python_backend.triton_adapter import pb

_FAMILIES = {
    "nv_trt_llm_request_metrics": (
        "TRT LLM request metrics",
        "request_type",
        ("active", "max", "scheduled", "context", "waiting"),
    ),
    "nv_trt_llm_kv_cache_block_metrics": (
        "TRT LLM KV cache block metrics",
        "kv_cache_block_type",
        ("max", "free", "used", "tokens_per", "fraction"),
    ),
    "nv_trt_llm_inflight_batcher_metrics": (
        "TRT LLM inflight_batcher-specific metrics",
        "inflight_batcher_specific_metric",
        ("total_context_tokens", "generation_requests", "paused_requests"),
    ),
    "nv_trt_llm_general_metrics": ("General TRT LLM metrics", "general_type", ("iteration_counter",)),
}


class EngineMetrics:
    """Gauges of one model version; the objects must stay alive for Triton to show them."""

    def __init__(self, model: str, version: str) -> None:
        pb_utils = pb.utils()
        self._families = []
        self._gauges: dict[tuple[str, str], Any] = {}
        for name, (description, label, values) in _FAMILIES.items():
            family = pb_utils.MetricFamily(
                name=name, description=description, kind=pb_utils.MetricFamily.GAUGE
            )
            self._families.append(family)
            for value in values:
                self._gauges[name, value] = family.Metric(
                    labels={"model": model, "version": version, label: value}
                )

    def update(self, capacity: Ready, now: Gauges) -> None:
        self._set("nv_trt_llm_request_metrics", "active", now.active)
        self._set("nv_trt_llm_request_metrics", "max", capacity.max_batch_size)
        self._set("nv_trt_llm_request_metrics", "scheduled", now.scheduled)
        self._set("nv_trt_llm_request_metrics", "context", now.context)
        self._set("nv_trt_llm_request_metrics", "waiting", now.waiting)
        self._set("nv_trt_llm_kv_cache_block_metrics", "max", now.total_blocks)
        self._set("nv_trt_llm_kv_cache_block_metrics", "free", now.total_blocks - now.used_blocks)
        self._set("nv_trt_llm_kv_cache_block_metrics", "used", now.used_blocks)
        self._set("nv_trt_llm_kv_cache_block_metrics", "tokens_per", capacity.tokens_per_block)
        self._set("nv_trt_llm_kv_cache_block_metrics", "fraction", now.used_blocks / now.total_blocks)
        self._set("nv_trt_llm_inflight_batcher_metrics", "total_context_tokens", now.context_tokens)
        self._set("nv_trt_llm_inflight_batcher_metrics", "generation_requests", now.scheduled - now.context)
        self._set("nv_trt_llm_inflight_batcher_metrics", "paused_requests", now.paused)
        self._set("nv_trt_llm_general_metrics", "iteration_counter", now.step_count)

    def _set(self, family: str, value: str, number: float) -> None:
        self._gauges[family, value].set(number)

    def close(self) -> None:
        """Metrics go before their families: the other order ends the stub with a fault."""
        self._gauges.clear()
        self._families.clear()
