"""What the LLM API is given: every published name with its type, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch


class CapacitySchedulerPolicy(str, Enum):
    MAX_UTILIZATION = "MAX_UTILIZATION"
    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    STATIC_BATCH = "STATIC_BATCH"


def fits(value: object, kind: Any) -> bool:
    """As strict as what the real one passes its values on to: an integer will do for a float, a bool not."""
    if get_origin(kind) is UnionType:
        return any(fits(value, each) for each in get_args(kind))
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(fits(each, get_args(kind)[0]) for each in value)
    if kind is Any:
        return True
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


class Checked:
    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if not fits(getattr(self, name), kind):
                raise TypeError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; it must be {kind}")


@dataclass(kw_only=True)
class KvCacheConfig(Checked):
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = 0.9
    host_cache_size: int | None = None
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    attention_dp_events_gather_period_ms: int = 5
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    max_gpu_total_bytes: int = 0
    dtype: str = "auto"
    tokens_per_block: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction = self.free_gpu_memory_fraction
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"free_gpu_memory_fraction is {fraction}; it must be from 0 to 1")


@dataclass(kw_only=True)
class SchedulerConfig(Checked):
    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    context_chunking_policy: Any = None
    dynamic_batch_config: Any = None


@dataclass(kw_only=True)
class LlmArguments(Checked):
    """Of `LLM()` on PyTorch, the first nine also by position."""

    model: str | Path
    tokenizer: Any = None
    tokenizer_mode: Literal["auto", "slow"] = "auto"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    revision: str | None = None
    tokenizer_revision: str | None = None
    pipeline_parallel_size: int = 1
    load_format: Literal["auto", "dummy"] = "auto"
    max_batch_size: int | None = 2048
    max_input_len: int | None = 1024
    max_seq_len: int | None = None
    max_beam_width: int | None = 1
    max_num_tokens: int | None = 8192
    enable_chunked_prefill: bool = False
    kv_cache_config: KvCacheConfig
    scheduler_config: SchedulerConfig
    guided_decoding_backend: Literal["xgrammar", "llguidance", None] = None
    gather_generation_logits: bool = False
    return_perf_metrics: bool = False
    enable_iter_perf_stats: bool = False
    enable_iter_req_stats: bool = False
    iter_stats_max_iterations: int | None = None
    stream_interval: int = 1
    disable_overlap_scheduler: bool = False
    cuda_graph_config: Any = None
    moe_expert_parallel_size: int | None = None
    orchestrator_type: Literal["rpc", "ray", None] = None
    enable_lora: bool = False
    backend: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> LlmArguments:
        defaults = {"kv_cache_config": KvCacheConfig(), "scheduler_config": SchedulerConfig()}
        strangers = given.keys() - {field.name for field in fields(cls)}
        if strangers:  # the real one forbids what it does not know
            raise ValueError(f"LLM got unexpected arguments {sorted(strangers)}")
        return cls(**{**defaults, **given})


@dataclass(kw_only=True)
class GuidedDecodingParams(Checked):
    json: str | dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        if sum(bool(getattr(self, field.name)) for field in fields(self)) > 1:
            raise ValueError("Only one guide can be used for a request")


_RANGES = (
    ("top_p_min", 0, 1),
    ("top_p_decay", 0, 1),
    ("min_p", 0, 1),
    ("min_tokens", 0, 1 << 31),
    ("repetition_penalty", 0, float("inf")),
)


@dataclass(kw_only=True)
class SamplingParams(Checked):
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: torch.Tensor | None = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    beam_width_array: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: Any = None
    lookahead_config: Any = None
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"require top_k >= 0, got top_k={self.top_k}")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"require temperature >= 0, got temperature={self.temperature}")
        for name, least, most in _RANGES:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"require {least} <= {name} <= {most}, got {name}={value}")
        if self.n > 1 and self.is_greedy:
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns")

    @property
    def is_greedy(self) -> bool:
        nothing_set = self.temperature is None and self.top_p is None and self.top_k is None
        return nothing_set or self.top_k == 1 or self.top_p == 0 or self.temperature == 0


class KvCacheRetentionConfig:
    """How long blocks outlive their request."""

    class TokenRangeRetentionConfig:
        def __init__(
            self,
            token_start: int,
            token_end: int | None,
            priority: int,
            duration_ms: timedelta | None = None,
        ) -> None:
            for value, kind in (
                (token_start, int),
                (token_end, (int, NoneType)),
                (priority, int),
                (duration_ms, (timedelta, NoneType)),
            ):
                if not isinstance(value, kind):
                    raise TypeError(f"incompatible constructor argument {value!r}")
            self.token_start, self.token_end = token_start, token_end
            self.priority, self.duration_ms = priority, duration_ms

    def __init__(
        self,
        token_range_retention_configs: list[TokenRangeRetentionConfig],
        decode_retention_priority: int = 35,
        decode_duration_ms: timedelta | None = None,
    ) -> None:
        self.token_range_retention_configs = token_range_retention_configs
        self.decode_retention_priority = decode_retention_priority
        self.decode_duration_ms = decode_duration_ms
