"""From the parameters of a config to a TensorRT-LLM that is ready to be asked."""

from __future__ import annotations

import atexit
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from python_backend.engine.report import LoadingProgress, ignore_progress
from python_backend.engine.runtimes.trtllm.conversation import Conversation
from python_backend.engine.runtimes.trtllm.package import import_package
from python_backend.engine.runtimes.trtllm.runtime import LlmFacts, LlmRuntime
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import DeviceSettings, EngineParameters, refusal

_log = logging.getLogger("inflight.engine")

# How weights are kept, by TensorRT-LLM's names; it does not quantise a checkpoint that is not.
DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16"}
_STATISTICS_TIMEOUT_S = 5.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    vocabulary: int
    max_sequence_tokens: int
    end_id: int | None
    tokenizer_dir: str | None


def load_llm(parameters: EngineParameters, progress: LoadingProgress = ignore_progress) -> LlmRuntime:
    progress("loading", 0, 0)
    checkpoint = read_checkpoint(parameters)
    settings = parameters.on("cuda")
    llmapi = import_package(parameters.gpu_device_ids)
    llm = llmapi.LLM(**llm_arguments(parameters, settings, checkpoint, llmapi))
    conversation = Conversation(llm, parameters.stats_check_period_ms / 1000)
    atexit.register(conversation.close)  # before the package's own, which was registered earlier
    return LlmRuntime(conversation, llmapi, _facts(parameters, settings, checkpoint, conversation, llmapi))


def read_checkpoint(parameters: EngineParameters) -> CheckpointFacts:
    folder = Path(parameters.gpt_model_path)
    try:
        config = json.loads((folder / "config.json").read_text())
        config = {**config, **(config.get("text_config") or {})}
        vocabulary, longest = int(config["vocab_size"]), int(config["max_position_embeddings"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InflightError(
            ErrorKind.MODEL_NOT_FOUND, f"{folder / 'config.json'} does not describe a model: {error!r}"
        ) from error
    wanted = parameters.inflight_max_sequence_tokens or longest
    if wanted > longest:
        raise refusal("inflight_max_sequence_tokens", str(wanted), f"at most {longest}, the model's own")
    tokenizer = Path(parameters.tokenizer_dir or folder)
    ends = config.get("eos_token_id")
    return CheckpointFacts(
        vocabulary,
        wanted,
        next(iter(ends if isinstance(ends, list) else [ends]), None),
        str(tokenizer) if (tokenizer / "tokenizer.json").is_file() else None,
    )


def llm_arguments(
    parameters: EngineParameters, settings: DeviceSettings, checkpoint: CheckpointFacts, llmapi: Any
) -> dict[str, Any]:
    if parameters.inflight_precision not in DTYPES:
        allowed = f"{', '.join(DTYPES)} (a checkpoint that is quantised is taken as it is)"
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
    return arguments


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
    llmapi: Any,
) -> LlmFacts:
    """Answers one token first: it tells how many blocks it has only when it has computed something."""
    _answer_once(conversation, llmapi)
    deadline_s = time.monotonic() + _STATISTICS_TIMEOUT_S
    while not conversation.iterations.total_blocks and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    told = conversation.iterations
    tokens_per_block = told.tokens_per_block or settings.tokens_per_block
    guess = (
        parameters.max_tokens_in_paged_kv_cache or checkpoint.max_sequence_tokens * settings.max_batch_size
    )
    if not told.total_blocks:
        _log.warning("TensorRT-LLM does not tell how many blocks it has; %d tokens are taken for it", guess)
    total_blocks = told.total_blocks or max(1, guess // tokens_per_block)
    return LlmFacts(
        checkpoint.vocabulary,
        min(checkpoint.max_sequence_tokens, total_blocks * tokens_per_block),
        settings.max_batch_size,
        settings.max_step_tokens,
        total_blocks,
        tokens_per_block,
        checkpoint.tokenizer_dir is not None and checkpoint.end_id is not None,
        checkpoint.end_id,
    )


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
