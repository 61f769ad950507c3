"""What an engine is built with."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class EngineConfig:
    """Everything that shapes an engine; None means "what the model and the machine suggest"."""

    checkpoint_dir: str
    max_tokens_in_kv_cache: int | None = None
    tokens_per_block: int = 16
    max_batch_size: int = 64
    max_step_tokens: int = 512
    max_sequence_tokens: int | None = None
    static_batching: bool = False
    check_blocks: bool = False
    guaranteed_no_evict: bool = True
    threads: int | None = None
    enable_kv_cache_reuse: bool = True
    precision: str = "int8"
    kv_precision: str = "auto"  # of keys and values on a GPU: as the model computes, or fp8
    packed_cache_dir: str | None = None
    tokenizer_dir: str | None = None
    guide_compile_limit_s: float = 2.0
    device: str = "cpu"
    gpu: int = 0
    free_memory_fraction: float = 0.9
    host_cache_bytes: int | None = None  # for keys and values that leave the GPU
    random_weights: bool = False
    cuda_graphs: bool = True
    adapters_dir: str | None = None
    max_adapters: int = 0  # at once; 0: none are served
    max_adapter_rank: int = 64
    speculates: bool = False
    machine: str | None = None  # its kind, by which the cost of steps is kept; None: it is not kept

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("gpu", "max_adapters") else 1  # devices are counted from 0
            if type(value) is int and value < least:
                raise ValueError(f"{field.name} is {value}; it must be at least {least}")


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the model allows: ids below `vocabulary`, and sequences up to `max_sequence_tokens` long.

    Behind more than `even_context` tokens, attention takes longer than the rest of the model.
    """

    vocabulary: int
    max_sequence_tokens: int
    even_context: int | None = None
