"""From the parameters of a config to a TensorRT-LLM that is ready to be asked."""

from __future__ import annotations

import atexit
import logging
import time
from dataclasses import replace
from typing import Any

from python_backend.engine.report import LoadingProgress, ignore_progress
from python_backend.engine.runtimes.declaration import Capabilities
from python_backend.engine.runtimes.hosted.checkpoint import CheckpointFacts, read_checkpoint
from python_backend.engine.runtimes.hosted.conversation import Conversation
from python_backend.engine.runtimes.hosted.runtime import HostedRuntime, HostFacts
from python_backend.engine.runtimes.trtllm.host import LlmHost
from python_backend.engine.runtimes.trtllm.package import import_package
from python_backend.engine.runtimes.trtllm.translator import LlmTranslator
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import DeviceSettings, EngineParameters, refusal

_log = logging.getLogger("inflight.engine")

# How weights are kept, by TensorRT-LLM's names; it does not quantise a checkpoint that is not.
DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16"}
_STATISTICS_TIMEOUT_S = 5.0
_POLL_S = 0.02
# It tells of its iterations a few times a second.
_SILENCE_S = 120.0


def load_llm(
    parameters: EngineParameters,
    capabilities: Capabilities,
    progress: LoadingProgress = ignore_progress,
) -> HostedRuntime:
    progress("loading", 0, 0)
    checkpoint = read_checkpoint(parameters)
    settings = parameters.on("cuda")
    llmapi = import_package(parameters)
    host = LlmHost(llmapi.LLM(**llm_arguments(parameters, settings, checkpoint, llmapi)))
    conversation = Conversation(host, parameters.stats_check_period_ms / 1000, _SILENCE_S)
    atexit.register(conversation.close)  # before the package's own, which was registered earlier
    can_guide = checkpoint.tokenizer_dir is not None and bool(checkpoint.end_ids)
    if _is_spread(parameters):
        capabilities = replace(capabilities, generation_logits=False)
    translator = LlmTranslator(llmapi, capabilities, checkpoint.vocabulary, can_guide)
    _answer_once(conversation, llmapi)
    return HostedRuntime(
        conversation, translator, _facts(parameters, settings, checkpoint, conversation, host)
    )


def llm_arguments(
    parameters: EngineParameters, settings: DeviceSettings, checkpoint: CheckpointFacts, llmapi: Any
) -> dict[str, Any]:
    if parameters.inflight_precision not in DTYPES:
        allowed = f"{', '.join(DTYPES)} (a quantised checkpoint keeps its precision)"
        raise refusal("inflight_precision", parameters.inflight_precision, allowed)
    arguments: dict[str, Any] = {
        "model": parameters.gpt_model_path,
        "tokenizer": checkpoint.tokenizer_dir,
        "skip_tokenizer_init": checkpoint.tokenizer_dir is None,
        "dtype": DTYPES[parameters.inflight_precision],
        "load_format": "dummy" if parameters.inflight_weights == "random" else "auto",
        "max_batch_size": settings.max_batch_size,
        "max_num_tokens": settings.max_step_tokens,
        "max_seq_len": checkpoint.max_sequence_tokens,
        "kv_cache_config": llmapi.KvCacheConfig(
            enable_block_reuse=parameters.enable_kv_cache_reuse,
            max_tokens=parameters.max_tokens_in_paged_kv_cache,
            free_gpu_memory_fraction=parameters.kv_cache_free_gpu_mem_fraction,
            tokens_per_block=settings.tokens_per_block,
            host_cache_size=parameters.kv_cache_host_memory_bytes or None,
        ),
        "scheduler_config": llmapi.SchedulerConfig(capacity_scheduler_policy=_policy(parameters, llmapi)),
        "enable_chunked_prefill": True,
        "gather_generation_logits": True,
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
    }
    if checkpoint.tokenizer_dir is not None:
        arguments["guided_decoding_backend"] = "xgrammar"
    if not parameters.cuda_graph_mode:
        arguments["cuda_graph_config"] = None
    if _is_spread(parameters):
        arguments["tensor_parallel_size"] = parameters.tensor_parallel_size
        arguments["pipeline_parallel_size"] = parameters.pipeline_parallel_size
        # Gathering them would keep it in this process, which can have one rank alone.
        arguments["gather_generation_logits"] = False
        if parameters.enable_expert_parallel:
            arguments["moe_expert_parallel_size"] = parameters.tensor_parallel_size
    return {**arguments, **parameters.inflight_runtime_options}


def _is_spread(parameters: EngineParameters) -> bool:
    return parameters.tensor_parallel_size * parameters.pipeline_parallel_size > 1


def _policy(parameters: EngineParameters, llmapi: Any) -> Any:
    policies = llmapi.CapacitySchedulerPolicy
    if parameters.static_batching:
        return policies.STATIC_BATCH
    return policies.GUARANTEED_NO_EVICT if parameters.guaranteed_no_evict else policies.MAX_UTILIZATION


def _facts(
    parameters: EngineParameters,
    settings: DeviceSettings,
    checkpoint: CheckpointFacts,
    conversation: Conversation,
    host: LlmHost,
) -> HostFacts:
    total_blocks, tokens_per_block = _blocks(conversation, host)
    tokens_per_block = tokens_per_block or settings.tokens_per_block
    if not total_blocks:
        guess = (
            parameters.max_tokens_in_paged_kv_cache
            or checkpoint.max_sequence_tokens * settings.max_batch_size
        )
        _log.warning("TensorRT-LLM does not report how many KV blocks it has; assuming %d tokens", guess)
        total_blocks = max(1, guess // tokens_per_block)
    return HostFacts(
        checkpoint.vocabulary,
        min(checkpoint.max_sequence_tokens, total_blocks * tokens_per_block),
        settings.max_batch_size,
        settings.max_step_tokens,
        total_blocks,
        tokens_per_block,
        checkpoint.end_ids[0] if checkpoint.tokenizer_dir is not None and checkpoint.end_ids else None,
    )


def _blocks(conversation: Conversation, host: LlmHost) -> tuple[int, int]:
    """As it says, or as it tells of its first iteration; 0 where it does neither."""
    if capacity := host.capacity():
        return capacity.get("maxNumBlocks", 0), capacity.get("tokensPerBlock", 0)
    deadline_s = time.monotonic() + _STATISTICS_TIMEOUT_S
    while not conversation.iterations.total_blocks and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    return conversation.iterations.total_blocks, conversation.iterations.tokens_per_block


def _answer_once(conversation: Conversation, llmapi: Any) -> None:
    params = llmapi.SamplingParams(
        max_tokens=1, end_id=0, pad_id=0, ignore_eos=True, top_k=1, detokenize=False
    )
    conversation.ask({"inputs": [0], "sampling_params": params, "streaming": True})
    while conversation.failure is None:
        for told in conversation.hear(1.0):
            if told.error is not None:
                raise InflightError(
                    ErrorKind.ENGINE_FAILED, f"TensorRT-LLM does not answer: {told.error}"
                ) from told.error
            if told.news.is_last:
                return
    raise InflightError(ErrorKind.ENGINE_FAILED, conversation.failure)
