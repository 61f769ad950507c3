"""A request of the contract, as TensorRT-LLM is asked for it; what it cannot do is refused by name.

Which token ends an answer, and how, is decided here and not there: an answer that has ended is aborted. So a
stop word may have several tokens, its tokens are part of the answer, and `end_id` is not, as the contract
has it. What TensorRT-LLM can look for itself, single tokens, it is told as well, to lose no step.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from python_backend.engine.request import GenerationRequest, Retention
from python_backend.engine.runtimes.hosted.sampling import penalties_of


def sampling_arguments(
    request: GenerationRequest, max_new_tokens: int, index: int, vocabulary: int
) -> dict[str, Any]:
    """Of `SamplingParams`, for the sequence `index` of the request; guided decoding is added by the caller.

    Each sequence is a request of its own there, with its own seed: that it says of each why it ended.
    """
    end_id = request.end_id if request.end_id is not None and request.end_id >= 0 else None
    # Its `min_tokens` holds for the end token alone; a stop word that comes too early is passed over here.
    may_stop = request.sampling.min_tokens <= 1
    single_stops = [
        stop[0]
        for stop in request.stop_sequences
        if may_stop and len(stop) == 1 and 0 <= stop[0] < vocabulary
    ]
    arguments: dict[str, Any] = {
        "max_tokens": max_new_tokens,
        # It wants one in any case, or it would take the tokenizer's.
        "end_id": end_id or 0,
        "pad_id": end_id or 0,
        "ignore_eos": end_id is None,
        "stop_token_ids": single_stops or None,
        "include_stop_str_in_output": True,
        "detokenize": False,
        "add_special_tokens": False,
        "return_context_logits": request.asks_of_prompt,
        "return_generation_logits": request.returns_generation_logits,
        **_choosing(request, index),
    }
    if end_id is not None:
        arguments["min_tokens"] = max(1, request.sampling.min_tokens)
    if request.returns_log_probs or request.top_log_probs is not None:
        arguments["logprobs"] = max(1, request.top_log_probs or 0)
    if request.token_bias or request.bad_sequences:
        arguments["embedding_bias"] = _bias(request, vocabulary)
    return arguments


def _bias(request: GenerationRequest, vocabulary: int) -> torch.Tensor:
    """Bad words too: its sampler passed over `bad_token_ids` in silence until late in 1.3."""
    bias = torch.zeros(vocabulary, dtype=torch.float32)
    if request.token_bias:
        bias[list(request.token_bias)] = torch.tensor(list(request.token_bias.values()))
    bias[[bad[0] for bad in request.bad_sequences]] = float("-inf")
    return bias


def _choosing(request: GenerationRequest, index: int) -> dict[str, Any]:
    """How the next token is chosen; None is TensorRT-LLM's own default, which is the contract's."""
    sampling = request.sampling
    chosen: dict[str, Any] = {"top_k": 1}
    if not sampling.is_greedy:
        chosen = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p if sampling.top_p > 0 else 1.0,
            "seed": (sampling.seed + index) % (1 << 64),
        }
        if sampling.min_p:
            chosen["min_p"] = sampling.min_p
    return chosen | penalties_of(sampling)


def keeps_the_usual(retention: Retention) -> bool:
    return retention == Retention()


def retention_config(retention: Retention, llmapi: Any) -> Any:
    kept = llmapi.KvCacheRetentionConfig
    return kept(
        token_range_retention_configs=[
            kept.TokenRangeRetentionConfig(part.start, part.end, part.priority, _duration(part.duration_ms))
            for part in retention.ranges
        ],
        decode_retention_priority=retention.decode_priority,
        decode_duration_ms=_duration(retention.decode_duration_ms),
    )


def _duration(duration_ms: int | None) -> timedelta | None:
    return None if duration_ms is None else timedelta(milliseconds=duration_ms)
