"""An engine without a model: tokens at a set rate, so that the path around the engine can be measured.

Sequence position i yields token `prompt[0] + i % 50`, so whoever receives the text can tell what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from python_backend.engine.host.memory import resident_bytes
from python_backend.engine.report import FinishReason, Gauges, PerfMetrics, Ready, SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.declaration import Capabilities, refuse_undone
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.tiers import Tier

_CYCLE = 50
_BLOCK_TOKENS = 16
_MAX_TOKENS = 1 << 20


@dataclass(slots=True)
class _Stream:
    key: int
    index: int
    first_id: int
    wanted: int
    arrival_ns: int
    produced: int = 0
    first_ns: int = 0
    cancelled: bool = False


class SyntheticRuntime:
    """Every running stream gets one token a step; a step lasts streams ÷ rate seconds."""

    def __init__(self, parameters: EngineParameters, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self._tokens_per_s = parameters.inflight_synthetic_tokens_per_s
        settings = parameters.on("cpu")  # as good as any: nothing is computed
        self._max_batch_size = settings.max_batch_size
        self._max_step_tokens = settings.max_step_tokens
        self._streams: list[_Stream] = []
        self._next_step_s = 0.0
        self._steps = 0

    def describe(self) -> Ready:
        blocks = _MAX_TOKENS // _BLOCK_TOKENS
        return Ready(_MAX_TOKENS, blocks, _BLOCK_TOKENS, self._max_batch_size, self._max_step_tokens)

    @property
    def has_work(self) -> bool:
        return bool(self._streams)

    @property
    def can_step(self) -> bool:
        return self.has_work

    @property
    def spare_s(self) -> float:
        return 0.0

    def add(self, key: int, request: GenerationRequest, arrival_ns: int) -> None:
        refuse_undone(request, self._capabilities, "the synthetic runtime")
        if not self._streams:
            self._next_step_s = time.monotonic()
        self._streams += [
            _Stream(key, index, request.prompt_ids[0], request.max_new_tokens, arrival_ns)
            for index in range(request.num_return_sequences)
        ]

    def cancel(self, key: int) -> None:
        for stream in self._streams:
            if stream.key == key:
                stream.cancelled = True

    def configure(
        self,
        max_step_tokens: int | None,
        max_batch_size: int | None,
        inter_token_ms: Mapping[Tier, float | None] | None = None,
    ) -> None:
        """Shown in the gauges and otherwise without effect: nothing is computed here."""
        self._max_step_tokens = max_step_tokens or self._max_step_tokens
        self._max_batch_size = max_batch_size or self._max_batch_size

    def drop_adapter(self, name: str) -> None:
        """There are none."""

    def step(self) -> list[SequenceEvent]:
        self._next_step_s += len(self._streams) / self._tokens_per_s
        time.sleep(max(0.0, self._next_step_s - time.monotonic()))
        self._steps += 1
        now_ns = time.monotonic_ns()
        events = [_advance(stream, now_ns) for stream in self._streams]
        self._streams = [
            stream for stream, event in zip(self._streams, events, strict=True) if not event.is_last
        ]
        return events

    def abort(self, reason: str) -> list[SequenceEvent]:
        streams, self._streams = self._streams, []
        return [SequenceEvent(stream.key, [], None, reason, stream.index) for stream in streams]

    def gauges(self) -> Gauges:
        running = len(self._streams)
        return Gauges(
            step_count=self._steps,
            active=running,
            scheduled=running,
            context=0,
            waiting=0,
            paused=0,
            used_blocks=running,
            total_blocks=self.describe().total_blocks,
            context_tokens=0,
            max_batch_size=self._max_batch_size,
            max_step_tokens=self._max_step_tokens,
            memory_bytes=resident_bytes(),
        )


def _advance(stream: _Stream, now_ns: int) -> SequenceEvent:
    stream.first_ns = stream.first_ns or now_ns
    perf = PerfMetrics(stream.arrival_ns, stream.first_ns, stream.first_ns, now_ns, 1, 0, 0)
    if stream.cancelled:
        return SequenceEvent(stream.key, [], FinishReason.CANCELLED, sequence_index=stream.index, perf=perf)
    token_id = stream.first_id + stream.produced % _CYCLE
    stream.produced += 1
    if stream.produced < stream.wanted:
        return SequenceEvent(stream.key, [token_id], sequence_index=stream.index)
    return SequenceEvent(stream.key, [token_id], FinishReason.LENGTH, sequence_index=stream.index, perf=perf)
