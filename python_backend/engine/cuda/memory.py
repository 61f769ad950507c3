"""How the GPU's memory is shared out: weights, what a step needs, and the rest for keys and values."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from python_backend.engine.models.decoder import DecoderShape

_log = logging.getLogger("inflight.engine")

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryFound:
    """What was measured on the device, in bytes.

    `free` is what is left beside the weights and everything that stays; `step` is the most that a step of
    the largest size takes beyond that.
    """

    total: int
    free: int
    step: int


def blocks_that_fit(
    found: MemoryFound,
    bytes_per_block: int,
    tokens_per_block: int,
    free_fraction: float,
    max_tokens: int | None,
    tables: int = 1,
) -> int:
    """Blocks for keys and values: `free_fraction` of what is free, and no more than `max_tokens` need.

    A token has keys and values in a block of each of the `tables`. Refuses where not even one block is left.
    Fewer than one full sequence needs is the caller's to limit.
    """
    room_bytes = int((found.free - found.step) * free_fraction)
    # One block more than is counted exists: rows that fill up a batch write there.
    fitting = room_bytes // bytes_per_block - 1
    if fitting < 1:
        raise does_not_fit(
            f"after the weights {found.free / GIB:.2f} of {found.total / GIB:.1f} GiB are free and a step "
            f"needs {found.step / GIB:.2f} GiB; kv_cache_free_gpu_mem_fraction {free_fraction:g} of the rest "
            "is less than one KV block",
            "raise that fraction, lower inflight_max_step_tokens or inflight_max_batch_size",
        )
    wanted = fitting if max_tokens is None else max(1, max_tokens // tokens_per_block) * tables
    if wanted > fitting:
        _log.warning(
            "max_tokens_in_paged_kv_cache is %d; %d tokens fit on this GPU",
            max_tokens,
            fitting // tables * tokens_per_block,
        )
    return min(fitting, wanted)


def weight_bytes(shape: DecoderShape, precision: str) -> int:
    """About what all weights take; norms and biases are next to nothing.

    The shape does not tell whether there is a head beside the embeddings, nor which layers have experts where
    not all do: no such head is counted, and experts for every layer.
    """
    entry_bytes = 4 if precision == "fp32" else 2
    attended = shape.heads * shape.head_dim
    products = [(attended + 2 * shape.kv_heads * shape.head_dim, shape.hidden), (shape.hidden, attended)]
    vocabulary = shape.vocabulary * shape.hidden
    kept = vocabulary  # matrices that fp8 leaves as they are
    if (experts := shape.experts) is None:
        products += [(2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)]
    else:
        kept += shape.layers * experts.total * shape.hidden * (3 * experts.intermediate + 1)
    if precision == "fp8":
        layer_bytes = sum(outputs * inputs + 4 * outputs for outputs, inputs in products)
        copied_bytes = vocabulary + 4 * shape.vocabulary
    else:
        layer_bytes = sum(outputs * inputs for outputs, inputs in products) * entry_bytes
        copied_bytes = 0
    return shape.layers * layer_bytes + kept * entry_bytes + copied_bytes


def require_room_for_weights(weight_bytes: int, free_bytes: int, total_bytes: int) -> None:
    if weight_bytes > free_bytes:
        raise does_not_fit(
            f"its weights take {weight_bytes / GIB:.1f} GiB, and {free_bytes / GIB:.1f} of "
            f"{total_bytes / GIB:.1f} GiB are free",
            "free memory on it",
        )


def allocated_bytes(gpu: int) -> int:
    """What this process's tensors take there."""
    return torch.cuda.memory_allocated(gpu)


def held_bytes() -> tuple[int, int]:
    """What this process holds on the GPU, and of the host's memory where the GPU can reach it."""
    # Newer than the oldest torch that will do.
    statistics: dict[str, int] = getattr(torch.cuda, "host_memory_stats", dict)()
    return torch.cuda.memory_reserved(), statistics.get("allocated_bytes.current", 0)


def free_unused() -> None:
    """Gives back what nobody refers to any more, to be taken by another."""
    gc.collect()
    torch.cuda.empty_cache()


def does_not_fit(why: str, advice: str) -> InflightError:
    return InflightError(
        ErrorKind.ENGINE_FAILED,
        f"the model does not fit on this GPU: {why}; {advice}, choose a smaller inflight_precision (fp8) or "
        "a larger GPU",
    )
