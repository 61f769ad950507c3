"""The contract of one of NVIDIA's containers, as data: parameters with their types, and known faults.

The tensors are those of `python_backend.wire.tensors`, which are this edition's, less what we added.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from python_backend.wire.tensors import CONTRACTS, ModelContract, Tensor

TRUE = ("True", "true", "TRUE", "1")
FALSE = ("False", "false", "FALSE", "0")


@dataclass(frozen=True, slots=True)
class Key:
    """One of `parameters`: `kind` is text, path, int, float or bool.

    A value of another kind counts as not given. A value that is none of `allowed` stops the load, unless it
    `only_warns`, which it does in the server's log.
    """

    kind: str = "text"
    default: str = ""
    required: bool = False
    allowed: tuple[str, ...] = ()
    only_warns: bool = False


@dataclass(frozen=True, slots=True)
class Edition:
    """`traps` are the faults of its Triton that a config can run into, by name.

    `open_types` are tensors whose type is left to whoever builds the engine, with the types it may have.
    """

    name: str
    image: str
    triton: str
    tensorrt_llm: str
    keys: dict[str, Key] = field(default_factory=dict)
    traps: frozenset[str] = frozenset()
    open_types: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def contract(self, model: str) -> ModelContract:
        """What is shipped, without our own additions."""
        whole = CONTRACTS[model]
        return ModelContract(_shipped(whole.inputs), _shipped(whole.outputs))


def _shipped(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in tensors if not tensor.extension)


_INT, _FLOAT, _PATH = Key("int"), Key("float"), Key("path")


def _flag(default: bool) -> Key:
    return Key("bool", "true" if default else "false")


_KEYS = {
    "gpt_model_type": Key(
        required=True, allowed=("inflight_fused_batching", "inflight_batching", "V1", "v1")
    ),
    "gpt_model_path": Key("path", required=True),
    "encoder_model_path": _PATH,
    "batch_scheduler_policy": Key(
        default="guaranteed_no_evict",
        allowed=("guaranteed_no_evict", "max_utilization"),
        only_warns=True,
    ),
    "kv_cache_free_gpu_mem_fraction": Key("float", "0.9"),
    "max_tokens_in_paged_kv_cache": _INT,
    "kv_cache_host_memory_bytes": Key("int", "0"),
    "enable_kv_cache_reuse": _flag(True),
    "cross_kv_cache_fraction": _FLOAT,
    "max_attention_window_size": Key(),
    "sink_token_length": _INT,
    "kv_cache_onboard_blocks": _flag(True),
    "enable_chunked_context": _flag(False),
    "exclude_input_in_output": _flag(False),
    "normalize_log_probs": _flag(True),
    "max_beam_width": Key("int", "1"),
    "decoding_mode": Key(
        allowed=(
            *("top_k", "top_p", "top_k_top_p", "beam_search"),
            *("medusa", "redrafter", "lookahead", "eagle"),
        ),
        only_warns=True,
    ),
    "medusa_choices": Key(),
    "eagle_choices": Key(),
    "lookahead_window_size": _INT,
    "lookahead_ngram_size": _INT,
    "lookahead_verification_set_size": _INT,
    "speculative_decoding_fast_logits": _flag(False),
    "cancellation_check_period_ms": Key("int", "100"),
    "stats_check_period_ms": Key("int", "100"),
    "recv_poll_period_ms": Key("int", "0"),
    "iter_stats_max_iterations": Key("int", "1000"),
    "request_stats_max_iterations": Key("int", "0"),
    "gpu_device_ids": Key(),
    "participant_ids": Key(),
    "num_nodes": Key("int", "1"),
    "gpu_weights_percent": Key("float", "1.0"),
    "lora_cache_optimal_adapter_size": Key("int", "8"),
    "lora_cache_max_adapter_size": Key("int", "64"),
    "lora_cache_gpu_memory_fraction": Key("float", "0.05"),
    "lora_cache_host_memory_bytes": Key("int", "1073741824"),
    "lora_prefetch_dir": _PATH,
    "multi_block_mode": _flag(True),
    "enable_context_fmha_fp32_acc": _flag(False),
    "cuda_graph_mode": _flag(False),
    "cuda_graph_cache_size": Key("int", "0"),
    "enable_trt_overlap": _flag(False),
    "guided_decoding_backend": Key(allowed=("xgrammar",)),
    "tokenizer_dir": _PATH,
    "xgrammar_tokenizer_info_path": _PATH,
    "executor_worker_path": _PATH,
    "FORCE_CPU_ONLY_INPUT_TENSORS": Key(),
}

_LOGITS, _ANY_FLOAT = ("FP32", "FP16"), ("FP32", "FP16", "BF16")
_OPEN_TYPES = {
    "draft_logits": _LOGITS,
    "context_logits": _LOGITS,
    "generation_logits": _LOGITS,
    "encoder_input_features": _ANY_FLOAT,
    "prompt_embedding_table": _ANY_FLOAT,
}

EDITIONS = {
    "26.07": Edition(
        "26.07",
        "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3",
        "2.71.0",
        "1.2.1",
        _KEYS,
        frozenset({"queue timeouts starve", "preserve_ordering is broken"}),
        _OPEN_TYPES,
    )
}
NEWEST = EDITIONS["26.07"]
