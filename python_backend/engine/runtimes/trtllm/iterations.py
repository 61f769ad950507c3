"""What TensorRT-LLM tells of its iterations, as the gauges of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Iterations:
    """The latest that was told, with counts over its life; what it does not tell stays as it is."""

    count: int = 0
    busy_ns: int = 0
    scheduled: int = 0
    context: int = 0
    context_tokens: int = 0
    paused: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    tokens_per_block: int = 0
    reused_blocks: int = 0
    new_blocks: int = 0
    cpu_bytes: int = 0
    gpu_bytes: int = 0
    pinned_bytes: int = 0

    def take(self, told: Mapping[str, Any]) -> None:
        batch, cache = told.get("inflightBatchingStats") or {}, told.get("kvCacheStats") or {}
        self.count = told.get("iter", self.count)
        self.busy_ns += round(told.get("iterLatencyMS", 0) * 1e6)
        self.scheduled = batch.get("numScheduledRequests", self.scheduled)
        self.context = batch.get("numContextRequests", self.context)
        self.context_tokens = batch.get("numCtxTokens", self.context_tokens)
        self.paused = batch.get("numPausedRequests", self.paused)
        self.used_blocks = cache.get("usedNumBlocks", self.used_blocks)
        self.total_blocks = cache.get("maxNumBlocks", self.total_blocks)
        self.tokens_per_block = cache.get("tokensPerBlock", self.tokens_per_block)
        self.reused_blocks = cache.get("reusedBlocks", self.reused_blocks)
        self.new_blocks = cache.get("allocNewBlocks", self.new_blocks)
        self.cpu_bytes = told.get("cpuMemUsage", self.cpu_bytes)
        self.gpu_bytes = told.get("gpuMemUsage", self.gpu_bytes)
        self.pinned_bytes = told.get("pinnedMemUsage", self.pinned_bytes)
