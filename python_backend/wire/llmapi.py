"""The tensors of NVIDIA's LLM API model, the only one that TensorRT-LLM has kept for Triton.

Shapes have no rows: a request is one prompt. Left out is what nobody here can tell: which word stopped an
answer, and how many blocks of the cache were looked for in vain.
"""

from __future__ import annotations

from python_backend.wire.tensors import ModelContract, Tensor


def _optional(name: str, dtype: str, *dims: int) -> Tensor:
    return Tensor(name, dtype, dims or (1,), optional=True)


SAMPLING = "sampling_param_"
LLMAPI = ModelContract(
    inputs=(
        Tensor("text_input", "BYTES", (-1,)),
        _optional("image_url", "BYTES", -1),
        _optional("streaming", "BOOL"),
        _optional(f"{SAMPLING}best_of", "INT32"),
        _optional(f"{SAMPLING}temperature", "FP32"),
        _optional(f"{SAMPLING}top_k", "INT32"),
        _optional(f"{SAMPLING}top_p", "FP32"),
        _optional(f"{SAMPLING}frequency_penalty", "FP32"),
        _optional(f"{SAMPLING}presence_penalty", "FP32"),
        _optional(f"{SAMPLING}max_tokens", "INT32"),
        _optional(f"{SAMPLING}stop", "BYTES", -1),
        _optional(f"{SAMPLING}seed", "UINT64"),
        _optional(f"{SAMPLING}exclude_input_from_output", "BOOL"),
        _optional(f"{SAMPLING}return_perf_metrics", "BOOL"),
        _optional("return_finish_reason", "BOOL"),
        _optional("return_stop_reason", "BOOL"),
        _optional("return_cumulative_logprob", "BOOL"),
        _optional("stop", "BOOL"),
        _optional("lora_id", "UINT64"),
        _optional("lora_name", "BYTES"),
        _optional("lora_path", "BYTES"),
        _optional("lora_ckpt_source", "BYTES"),
    ),
    outputs=(
        Tensor("text_output", "BYTES", (-1,)),
        Tensor("finish_reason", "BYTES", (-1,)),
        Tensor("cumulative_logprob", "FP32", (-1,)),
        Tensor("kv_cache_reused_block", "INT32", (-1,)),
        Tensor("kv_cache_alloc_new_blocks", "INT32", (-1,)),
        Tensor("kv_cache_alloc_total_blocks", "INT32", (-1,)),
        Tensor("arrival_time_ns", "INT64"),
        Tensor("first_scheduled_time_ns", "INT64"),
        Tensor("first_token_time_ns", "INT64"),
        Tensor("last_token_time_ns", "INT64"),
        Tensor("acceptance_rate", "FP32"),
        Tensor("total_accepted_draft_tokens", "INT32"),
        Tensor("total_draft_tokens", "INT32"),
    ),
)
