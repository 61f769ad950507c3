"""What a package tells of its iterations, as the gauges of the contract."""

from __future__ import annotations

from dataclasses import dataclass

from python_backend.costs.step_cost import LearnedStepCost


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
    cached_blocks: int = 0
    preemptions: int = 0
    learned: LearnedStepCost | None = None
