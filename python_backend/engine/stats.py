"""The engine in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine after its latest step."""

    step_count: int
    active: int
    running: int
    scheduled: int
    context: int
    context_tokens: int
    waiting: int
    paused: int
    preemption_count: int
    free_blocks: int
    used_blocks: int
    cached_blocks: int
    new_blocks: int
    reused_blocks: int
    total_blocks: int
    max_batch_size: int
    max_step_tokens: int
