"""From the parameters of a config to a vLLM that is ready to be asked."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from python_backend.engine.host.memory import available_bytes
from python_backend.engine.host.visible_devices import visible_devices
from python_backend.engine.report import LoadingProgress, ignore_progress
from python_backend.engine.runtimes.declaration import Capabilities
from python_backend.engine.runtimes.hosted.checkpoint import CheckpointFacts, read_checkpoint
from python_backend.engine.runtimes.hosted.conversation import Conversation
from python_backend.engine.runtimes.hosted.runtime import HostedRuntime, HostFacts
from python_backend.engine.runtimes.vllm.adapters import VllmAdapters, adapter_arguments
from python_backend.engine.runtimes.vllm.host import VllmHost
from python_backend.engine.runtimes.vllm.images import image_arguments, vision_of
from python_backend.engine.runtimes.vllm.statistics import VllmStatistics
from python_backend.engine.runtimes.vllm.transfer import (
    Transfers,
    choose_connector,
    has_nixl,
    prepare,
    transfer_arguments,
)
from python_backend.engine.runtimes.vllm.translator import VllmTranslator
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters, refusal

_DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp8": "auto"}
_MOST_LOG_PROBS = 20
# A core that is busy tells of each of its iterations: one that does not for so long is stuck.
_SILENCE_S = 60.0
# Of the memory that is free on a machine without a GPU.
_CPU_CACHE_SHARE = 0.25
_MOST_CPU_CACHE_BYTES = 4 << 30
_CPU_BLOCK, _GPU_BLOCK = 128, 16


def load_vllm(
    parameters: EngineParameters,
    capabilities: Capabilities,
    progress: LoadingProgress = ignore_progress,
) -> HostedRuntime:
    progress("loading", 0, 0)
    checkpoint = read_checkpoint(parameters)
    _refuse_unfit(parameters)
    set_environment(parameters)
    api = _import_api()
    from vllm.platforms import current_platform

    device = "cpu" if current_platform.is_cpu() else "cuda"
    connector = choose_connector(parameters, has_nixl(), device)
    prepare(parameters, connector)
    arguments = engine_arguments(parameters, checkpoint, device, connector)
    strangers = arguments.keys() - {each.name for each in fields(api["AsyncEngineArgs"])}
    if strangers:
        allowed = "arguments of vLLM's AsyncEngineArgs, see its documentation"
        raise refusal("inflight_runtime_options", min(strangers), allowed)
    if isinstance(transfer := arguments.get("kv_transfer_config"), dict):
        arguments["kv_transfer_config"] = api["KVTransferConfig"](**transfer)
    adapters = None
    if parameters.inflight_max_adapters and parameters.inflight_adapters_dir:
        adapters = VllmAdapters(Path(parameters.inflight_adapters_dir), api["LoRARequest"])
    transfers = Transfers(connector) if connector else None
    host = partial(VllmHost, adapters=adapters, image_io=api["ImageMediaIO"](), transfers=transfers)
    llm, conversation, vision = _start(parameters, arguments, api, host)
    can_guide = checkpoint.tokenizer_dir is not None and bool(checkpoint.end_ids)
    translator = VllmTranslator(api, capabilities, can_guide, checkpoint.end_ids, adapters, transfers)
    facts = _facts(parameters, checkpoint, llm.vllm_config, can_guide)
    return HostedRuntime(conversation, translator, replace(facts, **vision))


def _refuse_unfit(parameters: EngineParameters) -> None:
    if kept := parameters.kv_cache_host_memory_bytes:
        allowed = "0 with vLLM, which has its own arguments for it (inflight_runtime_options)"
        raise refusal("kv_cache_host_memory_bytes", str(kept), allowed)
    if parameters.static_batching:
        raise refusal("gpt_model_type", parameters.gpt_model_type, "inflight_fused_batching with vLLM")


def set_environment(parameters: EngineParameters) -> None:
    """Before vLLM is imported: it reads its environment then, and so do the processes that it starts."""
    given = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",  # what is served lies here
        # Its sampler there is compiled at the first request, by a compiler that need not be here.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    if parameters.inflight_threads:
        given["OMP_NUM_THREADS"] = str(parameters.inflight_threads)
    if parameters.tensor_parallel_size * parameters.pipeline_parallel_size > 1:
        given["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else each process wants cores of its own
    for name, value in given.items():
        os.environ.setdefault(name, value)
    if (visible := visible_devices(os.environ.get("CUDA_VISIBLE_DEVICES"), parameters)) is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _import_api() -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.exceptions import VLLMNotFoundError, VLLMUnprocessableEntityError, VLLMValidationError
    from vllm.inputs import tokens_input
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.media import ImageMediaIO
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    classes = (SamplingParams, AsyncEngineArgs, AsyncLLM, KVTransferConfig)
    asked = (RequestOutputKind, StructuredOutputsParams)
    errors = (VLLMNotFoundError, VLLMUnprocessableEntityError, VLLMValidationError)
    if current_platform.is_cpu():
        # Nothing is compiled on a CPU: there need be no compiler.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    broken = (EngineDeadError, EngineGenerateError)
    named = (*classes, *asked, *errors, *broken, ImageMediaIO, LoRARequest, tokens_input)
    return {each.__name__: each for each in named}


def engine_arguments(
    parameters: EngineParameters, checkpoint: CheckpointFacts, device: str, connector: str | None = None
) -> dict[str, Any]:
    """Of `AsyncEngineArgs`; `inflight_runtime_options` go before what is chosen here."""
    settings = replace(parameters, inflight_precision="auto", inflight_weights="checkpoint").on(device)
    is_cpu = device == "cpu"
    block = parameters.inflight_tokens_per_block or (_CPU_BLOCK if is_cpu else _GPU_BLOCK)
    arguments: dict[str, Any] = {
        "model": parameters.gpt_model_path,
        "tokenizer": checkpoint.tokenizer_dir,
        "skip_tokenizer_init": checkpoint.tokenizer_dir is None,
        "dtype": _DTYPES[parameters.inflight_precision],
        "quantization": "fp8" if parameters.inflight_precision == "fp8" else None,
        "kv_cache_dtype": parameters.inflight_kv_precision,
        "load_format": "dummy" if parameters.inflight_weights == "random" else "auto",
        "max_model_len": checkpoint.max_sequence_tokens,
        "max_num_seqs": settings.max_batch_size,
        "max_num_batched_tokens": settings.max_step_tokens,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": parameters.enable_kv_cache_reuse,
        "scheduling_policy": "priority",
        "generation_config": "vllm",  # a request says all of how its tokens are chosen
        "max_logprobs": _MOST_LOG_PROBS,
        "enforce_eager": is_cpu or not parameters.cuda_graph_mode,
        "disable_log_stats": True,  # they are not written to the log
        "enable_logging_iteration_details": True,
        "enable_expert_parallel": parameters.enable_expert_parallel,
        **parameters.parallel_sizes,
        **adapter_arguments(parameters),
        **image_arguments(parameters, checkpoint),
        **transfer_arguments(parameters, connector),
    }
    if parameters.inflight_tokens_per_block:
        arguments["block_size"] = block
    if is_cpu:
        arguments["kv_cache_memory_bytes"] = _cpu_cache_bytes()
    else:
        arguments["gpu_memory_utilization"] = parameters.kv_cache_free_gpu_mem_fraction
    if parameters.max_tokens_in_paged_kv_cache:
        arguments["num_gpu_blocks_override"] = max(1, parameters.max_tokens_in_paged_kv_cache // block)
    return {**arguments, **parameters.inflight_runtime_options}


def _cpu_cache_bytes() -> int:
    return min(_MOST_CPU_CACHE_BYTES, round(available_bytes() * _CPU_CACHE_SHARE))


def _start(
    parameters: EngineParameters,
    arguments: dict[str, Any],
    api: dict[str, Any],
    new_host: Callable[[Any], VllmHost],
) -> tuple[Any, Conversation, dict[str, int]]:
    loop = asyncio.new_event_loop()
    told: list[VllmStatistics] = []
    try:
        llm = loop.run_until_complete(_load(arguments, api, told))
        vision = loop.run_until_complete(vision_of(llm))
    except (ValueError, TypeError) as error:
        raise InflightError(ErrorKind.UNSUPPORTED, f"vLLM refuses the model: {error}") from error
    conversation = Conversation(new_host(llm), parameters.stats_check_period_ms / 1000, _SILENCE_S, loop)
    atexit.register(llm.shutdown)
    atexit.register(conversation.close)  # which runs before
    cache = llm.vllm_config.cache_config
    told.append(VllmStatistics(conversation.iterations, cache.num_gpu_blocks, cache.block_size))
    return llm, conversation, vision


def _facts(
    parameters: EngineParameters, checkpoint: CheckpointFacts, config: Any, can_guide: bool
) -> HostFacts:
    """Copies of the model have each a cache and a batch of their own."""
    blocks, block = config.cache_config.num_gpu_blocks, config.cache_config.block_size
    copies = parameters.data_parallel_size
    return HostFacts(
        checkpoint.vocabulary,
        min(checkpoint.max_sequence_tokens, blocks * block),
        config.scheduler_config.max_num_seqs * copies,
        config.scheduler_config.max_num_batched_tokens,
        blocks * copies,
        block,
        checkpoint.end_ids[0] if can_guide else None,
    )


async def _load(arguments: dict[str, Any], api: dict[str, Any], told: list[VllmStatistics]) -> Any:
    """In the loop that will ask it: vLLM starts its reader there."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Listener(StatLoggerBase):  # type: ignore[misc]
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
        ) -> None:
            for each in told:
                each.note(scheduler_stats, iteration_stats, engine_idx)

        def log_engine_initialized(self) -> None:
            pass

    return api["AsyncLLM"].from_engine_args(api["AsyncEngineArgs"](**arguments), stat_loggers=[Listener])
