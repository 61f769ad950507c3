"""This project's torch engine as a runtime of the engine process."""

from __future__ import annotations

from python_backend.engine.build import build_engine
from python_backend.engine.engine import EngineConfig, SequenceOutput
from python_backend.engine.messages import Gauges, Ready, SequenceEvent
from python_backend.engine.sequence import FinishReason, GenerationRequest
from python_backend.wire.parameters import EngineParameters


class TorchRuntime:
    def __init__(self, parameters: EngineParameters) -> None:
        self._max_batch_size = parameters.inflight_max_batch_size
        self._tokens_per_block = parameters.inflight_tokens_per_block
        self._engine = build_engine(
            EngineConfig(
                checkpoint_dir=parameters.gpt_model_path,
                max_tokens_in_kv_cache=parameters.max_tokens_in_paged_kv_cache,
                tokens_per_block=parameters.inflight_tokens_per_block,
                max_batch_size=parameters.inflight_max_batch_size,
                max_step_tokens=parameters.inflight_max_step_tokens,
                max_sequence_tokens=parameters.inflight_max_sequence_tokens,
                static_batching=parameters.static_batching,
                check_blocks=parameters.inflight_check_blocks,
                guaranteed_no_evict=parameters.guaranteed_no_evict,
                threads=parameters.inflight_threads,
            )
        )

    def describe(self) -> Ready:
        return Ready(
            max_sequence_tokens=self._engine.limits.max_sequence_tokens,
            total_blocks=self._engine.pool.total_blocks,
            tokens_per_block=self._tokens_per_block,
            max_batch_size=self._max_batch_size,
        )

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    def add(self, key: int, request: GenerationRequest) -> None:
        self._engine.add(key, request)

    def cancel(self, key: int) -> None:
        self._engine.cancel(key)

    def step(self) -> list[SequenceEvent]:
        return [_event(output) for output in self._engine.step()]

    def abort(self, reason: str) -> list[SequenceEvent]:
        return [_event(output) for output in self._engine.abort(reason)]

    def gauges(self) -> Gauges:
        now = self._engine.stats
        return Gauges(
            step_count=now.step_count,
            active=now.active,
            scheduled=now.scheduled if now.active else 0,
            context=now.context if now.active else 0,
            waiting=now.waiting,
            paused=now.paused,
            used_blocks=now.used_blocks,
            total_blocks=now.total_blocks,
            context_tokens=now.context_tokens if now.active else 0,
        )


def _event(output: SequenceOutput) -> SequenceEvent:
    if output.finish_reason is FinishReason.ERROR:
        return SequenceEvent(output.key, output.token_ids, error=output.error)
    reason = output.finish_reason.value if output.finish_reason else None
    return SequenceEvent(output.key, output.token_ids, reason)
