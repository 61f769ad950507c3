"""This project's own engine, as the parameters of a config ask for it."""

from __future__ import annotations

import logging

from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.host.device import choose_device
from python_backend.engine.report import LoadingProgress, ignore_progress
from python_backend.host.cores import processor
from python_backend.wire.parameters import EngineParameters

_log = logging.getLogger("inflight.engine")

# Places for them take no memory before there is one in them.
_MAX_ADAPTERS = 8


def load_engine(parameters: EngineParameters, progress: LoadingProgress = ignore_progress) -> Engine:
    device = choose_device(parameters.inflight_device, parameters.gpu)
    settings = device.settings(parameters)
    _log.info("computing on %s, %s", device, settings.precision)
    return build_engine(
        EngineConfig(
            checkpoint_dir=parameters.gpt_model_path,
            device=device.kind,
            gpu=parameters.gpu,
            max_tokens_in_kv_cache=parameters.max_tokens_in_paged_kv_cache,
            free_memory_fraction=parameters.kv_cache_free_gpu_mem_fraction,
            host_cache_bytes=parameters.kv_cache_host_memory_bytes or None,
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
            kv_precision=parameters.inflight_kv_precision,
            random_weights=parameters.inflight_weights == "random",
            cuda_graphs=parameters.cuda_graph_mode,
            packed_cache_dir=parameters.inflight_packed_cache_dir,
            tokenizer_dir=parameters.tokenizer_dir or None,
            guide_compile_limit_s=parameters.inflight_guide_compile_limit_s,
            adapters_dir=parameters.inflight_adapters_dir,
            max_adapters=_MAX_ADAPTERS
            if parameters.inflight_max_adapters is None
            else parameters.inflight_max_adapters,
            max_adapter_rank=parameters.inflight_max_adapter_rank,
            speculates=parameters.inflight_speculation,
            machine=processor() if device.gpu is None else device.gpu.name,
        ),
        progress,
    )
