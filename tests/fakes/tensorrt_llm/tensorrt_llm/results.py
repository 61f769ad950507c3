"""What the LLM API gives back: one object for each request, which grows while it is iterated over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch

from python_backend.engine.report import PerfMetrics, SequenceEvent
from python_backend.wire.errors import InflightError

from .arguments import SamplingParams


class RequestError(RuntimeError):
    """One request failed; the others go on."""


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: torch.Tensor | None = None
    request_perf_metrics: Any = None


@dataclass(frozen=True)
class TimingMetrics:
    arrival_time: timedelta
    first_scheduled_time: timedelta
    first_token_time: timedelta
    last_token_time: timedelta


@dataclass(frozen=True)
class KvCacheMetrics:
    num_total_allocated_blocks: int
    num_new_allocated_blocks: int
    num_reused_blocks: int


@dataclass(frozen=True)
class RequestPerfMetrics:
    timing_metrics: TimingMetrics
    kv_cache_metrics: KvCacheMetrics

    @classmethod
    def of(cls, perf: PerfMetrics) -> RequestPerfMetrics:
        times = (perf.arrival_ns, perf.first_scheduled_ns, perf.first_token_ns, perf.last_token_ns)
        blocks = (perf.alloc_total_blocks, perf.alloc_new_blocks, perf.reused_blocks)
        return cls(
            TimingMetrics(*(timedelta(microseconds=time_ns / 1000) for time_ns in times)),
            KvCacheMetrics(*blocks),
        )


class IterationResult:
    """What nobody passes on: it ends at once, for whoever listens."""

    def __aiter__(self) -> IterationResult:
        return self

    async def __anext__(self) -> dict[str, Any]:
        raise StopAsyncIteration


class RequestOutput:
    """Made in a running event loop, for an `async for`."""

    def __init__(
        self,
        request_id: int,
        prompt_token_ids: list[int],
        params: SamplingParams,
        streaming: bool,
        vocabulary: int,
        abort: Callable[[int], None],
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.outputs = [CompletionOutput(0)]
        self.context_logits: torch.Tensor | None = None
        self.finished = False
        self.cached_tokens = 0
        self._params, self._streaming, self._vocabulary = params, streaming, vocabulary
        self._abort, self._aborted = abort, False
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[SequenceEvent | Exception] = asyncio.Queue()

    def abort(self) -> None:
        self._abort(self.request_id)
        self._aborted = True

    def aborted(self) -> bool:
        return self._aborted

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        while True:
            told = await self._told.get()
            if isinstance(told, Exception):
                raise told  # and it does not count as finished
            self._take(told)
            if self._streaming or self.finished:
                return self

    # -- what computes tells, from its own thread -----------------------------------------------------

    def tell(self, told: SequenceEvent | Exception) -> None:
        if self._loop.is_running():  # else nobody is left to hear it
            self._loop.call_soon_threadsafe(self._told.put_nowait, told)

    def _take(self, event: SequenceEvent) -> None:
        if event.error is not None:
            raise RequestError(InflightError.from_text(event.error).message)
        output = self.outputs[0]
        output.token_ids += event.token_ids
        rows = event.top_log_probs or []
        output.logprobs += [{token_id: Logprob(found) for token_id, found in row} for row in rows]
        if event.context_logits is not None:
            self.context_logits = self._rows(event.context_logits)
        if event.generation_logits is not None:
            rows_so_far = [] if output.generation_logits is None else [output.generation_logits]
            output.generation_logits = torch.cat([*rows_so_far, self._rows(event.generation_logits)])
        if event.perf is not None:
            output.request_perf_metrics = RequestPerfMetrics.of(event.perf)
            self.cached_tokens = event.perf.cached_tokens
        if event.finish_reason is not None:
            self._end(output, event.finish_reason.value)

    def _end(self, output: CompletionOutput, reason: str) -> None:
        self.finished = True
        output.finish_reason = "stop" if reason in ("end_id", "stop_words") else reason
        if reason == "end_id":
            # Whether the real one leaves it in differs between its samplers; here it does, which is harder.
            output.token_ids.append(self._params.end_id or 0)
        if reason == "stop_words" and self._params.stop_token_ids:
            output.stop_reason = output.token_ids[-1]
            if not self._params.include_stop_str_in_output:
                del output.token_ids[-1]

    def _rows(self, data: bytes) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(data, np.float32).reshape(-1, self._vocabulary).copy())
