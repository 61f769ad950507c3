"""What vLLM tells of its iterations, read into the gauges of the contract."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from python_backend.costs.learners import StepLearner
from python_backend.costs.step_cost import StepShape
from python_backend.engine.runtimes.hosted.iterations import Iterations

# The first iterations of an engine's life compile kernels and touch memory for the first time.
_FIRST_STEPS = 8
# Learning from an iteration takes longer than to note it, and from every short one would tell no more.
_LEARN_EVERY_S = 0.01
# Of what those before it took on average.
_OWN_TIME = 0.25


class VllmStatistics:
    """Told of each iteration, by vLLM's own interface for whoever logs them.

    Iterations overlap: each takes, for the gauges, the time since the one before it was over, or what the
    core says of it where nothing ran before.
    """

    def __init__(
        self,
        iterations: Iterations,
        blocks_of_one: int,
        tokens_per_block: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = iterations
        self._clock_s = clock_s
        self._blocks = blocks_of_one
        self._tokens_per_block = tokens_per_block
        self._learner = StepLearner()
        self._used: dict[int, int] = {}  # blocks, by the number of the copy of the model
        self._over_s: dict[int, float] = {}
        self._spans: dict[int, _Span] = {}

    def note(self, scheduler: Any, iteration: Any, copy: int) -> None:
        now, now_s = self._now, self._clock_s()
        if iteration is not None:
            now.preemptions += iteration.num_preempted_reqs
        if scheduler is None:
            return
        self._used[copy] = round(scheduler.kv_cache_usage * self._blocks)
        now.used_blocks = sum(self._used.values())
        now.paused = scheduler.num_waiting_reqs
        now.scheduled = scheduler.num_running_reqs
        cache = scheduler.prefix_cache_stats
        if cache is not None:
            now.reused_blocks += cache.hits // self._tokens_per_block
            now.new_blocks += -(-(cache.queries - cache.hits) // self._tokens_per_block)
        details = scheduler.iteration_details
        if details is None or details.is_dummy:
            return
        over_s = self._over_s.pop(copy, None)
        took_s = details.elapsed_ms / 1000 if over_s is None else now_s - over_s
        if scheduler.num_running_reqs:
            self._over_s[copy] = now_s
        now.count += 1
        now.busy_ns += round(took_s * 1e9)
        now.context, now.context_tokens = details.num_ctx_requests, details.num_ctx_tokens
        if now.count > _FIRST_STEPS:
            cached = self._used[copy] * self._tokens_per_block
            self._learn(copy, details.num_ctx_tokens, details.num_generation_requests, cached, took_s)

    def _learn(self, copy: int, prompt_tokens: int, sequences: int, cached: int, took_s: float) -> None:
        span = self._spans.get(copy)
        if span is None or span.is_over(took_s):
            if span is not None:
                self._learner.observe(span.mean, 1000 * span.took_s / span.count)
                self._now.learned = self._learner.learned
            self._spans[copy] = span = _Span()
        span.count += 1
        span.prompt_tokens += prompt_tokens
        span.sequences += sequences
        span.cached_tokens += cached
        span.took_s += took_s


@dataclass(slots=True)
class _Span:
    """Iterations that are learned from together: as their cost is a sum, their mean costs what they do.

    They are heard of when there is time to listen. While a crowd comes in there is none, and then they are
    told in one breath: the first of them seems to have taken all the time, and the others none. So a span
    does not end before the next is told after a time of its own.
    """

    count: int = 0
    prompt_tokens: int = 0
    sequences: int = 0
    cached_tokens: int = 0
    took_s: float = 0.0

    def is_over(self, next_took_s: float) -> bool:
        return self.took_s >= _LEARN_EVERY_S and next_took_s >= _OWN_TIME * self.took_s / self.count

    @property
    def mean(self) -> StepShape:
        count = self.count
        return StepShape(self.prompt_tokens / count, self.sequences / count, self.cached_tokens / count)
