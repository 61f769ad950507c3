"""What a runtime tells, as plain values that travel out of the engine process."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from python_backend.costs.step_cost import LearnedStepCost

# Told how far a start is: the stage, and how much of its total is done. A total of 0: unknown.
LoadingProgress = Callable[[str, int, int], None]


def ignore_progress(stage: str, done: int, total: int) -> None:
    """For callers that show no progress."""


class EngineBroken(Exception):
    """A runtime cannot go on: every sequence has to end, and the process's owner starts another."""


class FinishReason(str, Enum):
    END_ID = "end_id"
    STOP_WORDS = "stop_words"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The model is loaded; what it can hold."""

    max_sequence_tokens: int
    total_blocks: int
    tokens_per_block: int
    max_batch_size: int
    max_step_tokens: int
    can_pause: bool = False
    max_images: int = 0  # in a request
    image_tokens: int = 0  # of one, at most
    # As `EngineReport` has them.
    window_tokens: int = 0
    window_blocks: int = 0
    keeps_all: bool = True


class PerfMetrics(msgspec.Struct, array_like=True, frozen=True):
    """One sequence's life so far, told with its first token and its last event.

    Times are of the system's monotonic clock, 0: never.
    """

    arrival_ns: int
    first_scheduled_ns: int
    first_token_ns: int
    last_token_ns: int
    alloc_new_blocks: int
    reused_blocks: int
    preemptions: int
    cached_tokens: int = 0  # of the prompt, found in the cache
    pauses: int = 0
    paused_ns: int = 0
    drafted_tokens: int = 0
    accepted_drafts: int = 0
    image_tokens: int = 0  # of the prompt, beside those that were sent

    @property
    def alloc_total_blocks(self) -> int:
        return self.alloc_new_blocks + self.reused_blocks


class SequenceEvent(msgspec.Struct, array_like=True, frozen=True):
    """What one step gave one sequence; with `finish_reason` or `error` set it is the sequence's last.

    A request for several sequences gets the events of each under its one key, told apart by
    `sequence_index`. Logits are rows of fp32, one a token: `context_logits` those of the prompt, with the
    event of the first token; `generation_logits` those the tokens of this event were chosen from.
    `top_log_probs` has for each token its own id and log prob, then those of the likeliest; with the first
    token such rows of the prompt come before, if asked for, from its second token on. `steps` come with the
    last event, if asked for: rows as in sequence/step_notes.py. `context` is what another engine needs to
    have the prompt's keys and values, at the end of one that computed it for others.
    """

    key: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    error: str | None = None
    sequence_index: int = 0
    log_probs: list[float] | None = None
    context_logits: bytes | None = None
    generation_logits: bytes | None = None
    perf: PerfMetrics | None = None
    top_log_probs: list[list[tuple[int, float]]] | None = None
    steps: list[list[int]] | None = None
    context: bytes | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None


# Where processors compute, what one token more takes differs most in small steps.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Gauges(msgspec.Struct, array_like=True, frozen=True):
    """The engine at one moment, for Triton's metrics."""

    step_count: int
    active: int
    scheduled: int
    context: int
    waiting: int
    paused: int  # of those that wait
    used_blocks: int
    total_blocks: int
    context_tokens: int
    reused_blocks: int = 0  # over the engine's life
    cached_blocks: int = 0  # free, and still holding a prefix someone may ask for
    preemptions: int = 0  # over the engine's life
    max_batch_size: int = 0
    max_step_tokens: int = 0
    memory_bytes: int = 0
    new_blocks: int = 0  # handed out empty, over the engine's life
    gpu_memory_bytes: int = 0
    pinned_memory_bytes: int = 0
    busy_ns: int = 0  # how long steps were in flight, over the engine's life
    learned: LearnedStepCost | None = None
    pauses: int = 0  # over the engine's life
    host_blocks: int = 0  # on the host, and to be had for a copy
    recalled_blocks: int = 0  # from there, over the engine's life
    adapters: int = 0  # that are loaded
    adapter_loads: int = 0  # over the engine's life, as are the following
    drafted_tokens: int = 0  # guessed
    accepted_drafts: int = 0  # of them, right
    sequence_steps: int = 0  # in which a sequence got its next token, or several
    generated_tokens: int = 0
    # Steps by their tokens, up to each of SIZES, and how long they took together.
    sized_steps: tuple[int, ...] = ()
    sized_ns: tuple[int, ...] = ()

    @property
    def running(self) -> int:
        return self.active - self.waiting

    @property
    def free_blocks(self) -> int:
        return self.total_blocks - self.used_blocks
