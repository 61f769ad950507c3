"""An engine without a model: tokens at a set rate, so that the path around the engine can be measured.

Sequence position i yields token `prompt[0] + i % 50`, so whoever receives the text can tell what is missing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from python_backend.engine.messages import Gauges, Ready, SequenceEvent
from python_backend.engine.sequence import FinishReason, GenerationRequest
from python_backend.wire.parameters import EngineParameters

_CYCLE = 50
_BLOCK_TOKENS = 16
_MAX_TOKENS = 1 << 20


@dataclass(slots=True)
class _Stream:
    first_id: int
    wanted: int
    produced: int = 0
    cancelled: bool = False


class SyntheticRuntime:
    """Every running stream gets one token a step; a step lasts streams ÷ rate seconds."""

    def __init__(self, parameters: EngineParameters) -> None:
        self._tokens_per_s = parameters.inflight_synthetic_tokens_per_s
        self._max_batch_size = parameters.inflight_max_batch_size
        self._streams: dict[int, _Stream] = {}
        self._next_step_s = 0.0
        self._steps = 0

    def describe(self) -> Ready:
        return Ready(_MAX_TOKENS, _MAX_TOKENS // _BLOCK_TOKENS, _BLOCK_TOKENS, self._max_batch_size)

    @property
    def has_work(self) -> bool:
        return bool(self._streams)

    def add(self, key: int, request: GenerationRequest) -> None:
        if not self._streams:
            self._next_step_s = time.monotonic()
        self._streams[key] = _Stream(request.prompt_ids[0], request.max_new_tokens)

    def cancel(self, key: int) -> None:
        if stream := self._streams.get(key):
            stream.cancelled = True

    def step(self) -> list[SequenceEvent]:
        self._next_step_s += len(self._streams) / self._tokens_per_s
        time.sleep(max(0.0, self._next_step_s - time.monotonic()))
        self._steps += 1
        return [self._advance(key) for key in list(self._streams)]

    def _advance(self, key: int) -> SequenceEvent:
        stream = self._streams[key]
        if stream.cancelled:
            del self._streams[key]
            return SequenceEvent(key, [], FinishReason.CANCELLED.value)
        token_id = stream.first_id + stream.produced % _CYCLE
        stream.produced += 1
        if stream.produced < stream.wanted:
            return SequenceEvent(key, [token_id])
        del self._streams[key]
        return SequenceEvent(key, [token_id], FinishReason.LENGTH.value)

    def abort(self, reason: str) -> list[SequenceEvent]:
        keys = list(self._streams)
        self._streams.clear()
        return [SequenceEvent(key, [], error=reason) for key in keys]

    def gauges(self) -> Gauges:
        running = len(self._streams)
        return Gauges(self._steps, running, running, 0, 0, 0, running, self.describe().total_blocks, 0)
