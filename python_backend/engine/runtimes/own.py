"""This project's own engine as a runtime of the engine process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from python_backend.engine.build import build_engine
from python_backend.engine.engine import Engine, EngineConfig
from python_backend.engine.host.device import choose_device
from python_backend.engine.host.memory import resident_bytes
from python_backend.engine.process.messages import (
    Gauges,
    LoadingProgress,
    Ready,
    SequenceEvent,
    ignore_progress,
)
from python_backend.engine.request import GenerationRequest
from python_backend.wire.parameters import DeviceSettings, EngineParameters
from python_backend.wire.tiers import Tier

_log = logging.getLogger("inflight.engine")


class EngineRuntime:
    """`held_bytes` tells how much memory of the GPU, and of the host for it, is in use."""

    def __init__(
        self,
        engine: Engine,
        settings: DeviceSettings,
        held_bytes: Callable[[], tuple[int, int]],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._held_bytes = held_bytes

    def describe(self) -> Ready:
        return Ready(
            max_sequence_tokens=self._engine.limits.max_sequence_tokens,
            total_blocks=self._engine.pool.total_blocks,
            tokens_per_block=self._engine.pool.tokens_per_block,
            max_batch_size=self._settings.max_batch_size,
            max_step_tokens=self._settings.max_step_tokens,
        )

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def can_step(self) -> bool:
        return self._engine.can_step

    def add(self, key: int, request: GenerationRequest, arrival_ns: int) -> None:
        self._engine.add(key, request, arrival_ns)

    def cancel(self, key: int) -> None:
        self._engine.cancel(key)

    def configure(
        self,
        max_step_tokens: int | None,
        max_batch_size: int | None,
        inter_token_ms: Mapping[Tier, float | None] | None,
    ) -> None:
        self._engine.configure(max_step_tokens, max_batch_size, inter_token_ms)

    def step(self) -> list[SequenceEvent]:
        return self._engine.step()

    def abort(self, reason: str) -> list[SequenceEvent]:
        return self._engine.abort(reason)

    def gauges(self) -> Gauges:
        now = self._engine.stats
        gpu_bytes, pinned_bytes = self._held_bytes()
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
            reused_blocks=now.reused_blocks,
            cached_blocks=now.cached_blocks,
            preemptions=now.preemption_count,
            max_batch_size=now.max_batch_size,
            max_step_tokens=now.max_step_tokens,
            memory_bytes=resident_bytes(),
            new_blocks=now.new_blocks,
            gpu_memory_bytes=gpu_bytes,
            pinned_memory_bytes=pinned_bytes,
            busy_ns=self._engine.busy_ns,
            learned=self._engine.learned,
        )


def load_engine(parameters: EngineParameters, progress: LoadingProgress = ignore_progress) -> EngineRuntime:
    device = choose_device(parameters.inflight_device, parameters.gpu_device_ids)
    settings = device.settings(parameters)
    _log.info("computing on %s, %s", device, settings.precision)
    engine = build_engine(
        EngineConfig(
            checkpoint_dir=parameters.gpt_model_path,
            device=device.kind,
            gpu=parameters.gpu_device_ids,
            max_tokens_in_kv_cache=parameters.max_tokens_in_paged_kv_cache,
            free_memory_fraction=parameters.kv_cache_free_gpu_mem_fraction,
            tokens_per_block=settings.tokens_per_block,
            max_batch_size=settings.max_batch_size,
            max_step_tokens=settings.max_step_tokens,
            max_sequence_tokens=parameters.inflight_max_sequence_tokens,
            static_batching=parameters.static_batching,
            check_blocks=parameters.inflight_check_blocks,
            guaranteed_no_evict=parameters.guaranteed_no_evict,
            threads=parameters.inflight_threads,
            enable_kv_cache_reuse=parameters.enable_kv_cache_reuse,
            precision=settings.precision,
            random_weights=parameters.inflight_weights == "random",
            cuda_graphs=parameters.cuda_graph_mode,
            packed_cache_dir=parameters.inflight_packed_cache_dir,
            tokenizer_dir=parameters.tokenizer_dir or None,
            guide_compile_limit_s=parameters.inflight_guide_compile_limit_s,
        ),
        progress,
    )
    return EngineRuntime(engine, settings, _held_on_gpu if device.kind == "cuda" else held_nowhere)


def _held_on_gpu() -> tuple[int, int]:
    from python_backend.engine.cuda.memory import held_bytes

    return held_bytes()


def held_nowhere() -> tuple[int, int]:
    return 0, 0
