"""What TensorRT-LLM notes of its iterations, read into the gauges of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from python_backend.engine.runtimes.hosted.iterations import Iterations


def note(now: Iterations, told: Mapping[str, Any]) -> None:
    """What it does not tell stays as it is."""
    batch, cache = told.get("inflightBatchingStats") or {}, told.get("kvCacheStats") or {}
    now.count = told.get("iter", now.count)
    now.busy_ns += round(told.get("iterLatencyMS", 0) * 1e6)
    now.scheduled = batch.get("numScheduledRequests", now.scheduled)
    now.context = batch.get("numContextRequests", now.context)
    now.context_tokens = batch.get("numCtxTokens", now.context_tokens)
    now.paused = batch.get("numPausedRequests", now.paused)
    now.used_blocks = cache.get("usedNumBlocks", now.used_blocks)
    now.total_blocks = cache.get("maxNumBlocks", now.total_blocks)
    now.tokens_per_block = cache.get("tokensPerBlock", now.tokens_per_block)
    now.reused_blocks = cache.get("reusedBlocks", now.reused_blocks)
    now.new_blocks = cache.get("allocNewBlocks", now.new_blocks)
    now.cpu_bytes = told.get("cpuMemUsage", now.cpu_bytes)
    now.gpu_bytes = told.get("gpuMemUsage", now.gpu_bytes)
    now.pinned_bytes = told.get("pinnedMemUsage", now.pinned_bytes)
