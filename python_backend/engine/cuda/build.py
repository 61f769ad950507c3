"""Puts a model on the GPU: weights, a measured share of memory for keys and values, graphs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch

from python_backend.engine.cuda.adapters import CudaAdapters
from python_backend.engine.cuda.decoder import CudaDecoder
from python_backend.engine.cuda.executor import CudaExecutor
from python_backend.engine.cuda.experts import rows_of_each_kind
from python_backend.engine.cuda.fp8 import make_fp8
from python_backend.engine.cuda.graphs import StepGraphs, mixed_sizes
from python_backend.engine.cuda.grouped import keep_copies
from python_backend.engine.cuda.head import ByteHead, Head
from python_backend.engine.cuda.host_cache import host_blocks
from python_backend.engine.cuda.kv_cache import KvCache, kv_bytes_per_block
from python_backend.engine.cuda.linear import Linear
from python_backend.engine.cuda.memory import (
    MemoryFound,
    blocks_that_fit,
    does_not_fit,
    require_room_for_weights,
    weight_bytes,
)
from python_backend.engine.cuda.pinned_memory import Staging
from python_backend.engine.cuda.random_weights import RandomPlace
from python_backend.engine.cuda.sampler import Sampler
from python_backend.engine.cuda.slots import Slots
from python_backend.engine.cuda.warm_up_steps import (
    blocks_for,
    largest_step,
    mixed_steps,
    run,
    warm_up_lengths,
)
from python_backend.engine.cuda.weights import DeviceWeights, Place, place_weights
from python_backend.engine.host.cache_dir import cache_dir
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.layout import KvLayout, kv_layout, one_table

if TYPE_CHECKING:
    from python_backend.engine.config import EngineConfig
    from python_backend.engine.models.decoder import DecoderShape, DecoderWeights, Weights
    from python_backend.engine.report import LoadingProgress


_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
# Pinned memory for what one step tells the device: a few numbers a row, and now and then a mask.
_STAGING_BYTES = 16 << 20
_MARGIN_BYTES = 512 << 20
# Attention reads whole tiles of tokens: the one in which a window begins has to be there.
_TILE_TOKENS = 128
# What copies of quantised matrices may take of the GPU's memory, which else holds keys and values: an eighth.
_MOST_OF_COPIES = 8


def build_on_gpu(
    config: EngineConfig, weights: DecoderWeights, max_sequence_tokens: int, progress: LoadingProgress
) -> tuple[BlockPool, CudaExecutor]:
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_dir() / "triton"))
    device = torch.device("cuda", config.gpu)
    torch.cuda.set_device(device)
    torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]  # torch lacks it
    try:
        return _Builder(config, weights, max_sequence_tokens, device, progress).build()
    except torch.OutOfMemoryError as error:
        advice = "lower inflight_max_step_tokens or inflight_max_batch_size, or free memory on it"
        raise does_not_fit(str(error).split(". ")[0], advice) from None


def gpu_layout(config: EngineConfig, shape: DecoderShape, max_sequence_tokens: int) -> KvLayout:
    """With a tile more than each window has; the next step is planned before the last one has let go."""
    windows = [None if window is None else window + _TILE_TOKENS for window in shape.windows]
    return kv_layout(windows, max_sequence_tokens, CudaExecutor.depth * config.max_step_tokens)


def kv_dtype(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """How keys and values of a model that computes in `dtype` are kept."""
    return {"auto": dtype, "fp8": torch.float8_e4m3fn}[config.kv_precision]


def assemble(
    config: EngineConfig,
    pool: BlockPool,
    max_sequence_tokens: int,
    decoder: CudaDecoder,
    layout: KvLayout | None = None,
) -> tuple[CudaExecutor, StepGraphs]:
    shape, device, batch = decoder.shape, decoder.device, config.max_batch_size
    layout = layout or one_table(shape.layers)
    kept_as = kv_dtype(config, decoder.dtype)
    cache = KvCache(shape, pool.total_blocks, config.tokens_per_block, kept_as, device, layout)
    longest = min(max_sequence_tokens, pool.capacity_tokens)
    slots = Slots(batch, pool.blocks_for(longest), cache.scratch_block, device, layout.table_count)
    mixed = mixed_sizes(config.max_step_tokens) if config.cuda_graphs else []
    adapters = CudaAdapters(shape, config.max_adapters, config.max_adapter_rank, decoder.dtype, device)
    graphs = StepGraphs(decoder, cache, slots, batch, mixed, adapters)
    sampler = Sampler(shape.vocabulary, batch, device)
    staging = Staging(device, _STAGING_BYTES)
    return CudaExecutor(decoder, cache, slots, graphs, sampler, staging, adapters), graphs


class _Builder:
    def __init__(
        self,
        config: EngineConfig,
        weights: DecoderWeights,
        max_sequence_tokens: int,
        device: torch.device,
        progress: LoadingProgress,
    ) -> None:
        self._config = config
        self._weights = weights
        self._shape = weights.shape
        self._max_sequence_tokens = max_sequence_tokens
        self._device = device
        self._dtype = _DTYPES[config.precision]
        self._progress = progress
        self._layout = gpu_layout(config, weights.shape, max_sequence_tokens)
        self._block_bytes = kv_bytes_per_block(
            weights.shape,
            self._layout.block_layers,
            config.tokens_per_block,
            kv_dtype(config, self._dtype),
        )

    @torch.inference_mode()
    def build(self) -> tuple[BlockPool, CudaExecutor]:
        config, shape = self._config, self._shape
        decoder = CudaDecoder(shape, self._place(), self._max_sequence_tokens)
        self._progress("compiling kernels and measuring memory", 0, 0)
        found = self._measure(decoder)
        blocks = blocks_that_fit(
            found,
            self._block_bytes,
            config.tokens_per_block,
            config.free_memory_fraction,
            config.max_tokens_in_kv_cache,
            self._layout.table_count,
        )
        pool = self._pool(blocks)
        executor, graphs = assemble(config, pool, self._max_sequence_tokens, decoder, self._layout)
        pool.host = host_blocks(executor.cache, self._block_bytes, config.host_cache_bytes)
        self._warm_up(executor, self._pool(blocks))
        graphs.capture(
            config.cuda_graphs, lambda done, total: self._progress("capturing graphs", done, total)
        )
        if config.max_adapters and config.adapters_dir is not None:
            graphs.warm_up_adapters()
        return pool, executor

    def _pool(self, blocks: int) -> BlockPool:
        return BlockPool(blocks, self._config.tokens_per_block, window=self._layout.window)

    def _warm_up(self, executor: CudaExecutor, pool: BlockPool) -> None:
        """Has everything compiled that no graph's recording would, so that no request has to wait for it."""
        config, experts = self._config, self._shape.experts
        executor.warm_up()
        longest = min(config.max_step_tokens, self._max_sequence_tokens - 1, pool.capacity_tokens)
        kinds = [] if experts is None else rows_of_each_kind(experts, longest, self._dtype)
        most_chunks = min(config.max_batch_size, pool.total_blocks // pool.blocks_per_stretch - 1)
        steps = [
            *([length] for length in warm_up_lengths(longest, kinds)),
            *mixed_steps(config.max_step_tokens, most_chunks),
        ]
        for done, lengths in enumerate(steps):
            self._progress("warming up", done, len(steps))
            run(executor, pool, lengths)
        self._progress("warming up", len(steps), len(steps))

    def _place(self) -> DeviceWeights:
        free, total = torch.cuda.mem_get_info(self._device)
        keeps = self._config.precision != "fp32"
        stored = self._weights.quantized_bytes if keeps else None
        require_room_for_weights(stored or weight_bytes(self._shape, self._config.precision), free, total)
        place: Place = (
            RandomPlace(self._dtype, self._device) if self._config.random_weights else self._place_array
        )
        is_fp8 = self._config.precision == "fp8"
        placed = place_weights(
            self._weights,
            place,
            make_fp8 if is_fp8 else Linear,
            lambda done, total: self._progress("loading weights", done, total),
            self._device if keeps else None,
            ByteHead if is_fp8 else Head,
        )
        keep_copies(placed.linears, self._dtype, total // _MOST_OF_COPIES)
        return placed

    def _place_array(self, array: Weights) -> torch.Tensor:
        # Converted on the host: half of it travels, and the device never holds both.
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._dtype).to(self._device)

    def _measure(self, decoder: CudaDecoder) -> MemoryFound:
        """Runs the largest step there is, with a cache just big enough for it."""
        config = self._config
        lengths = largest_step(config.max_step_tokens, config.max_batch_size, self._max_sequence_tokens)
        pool = self._pool(blocks_for(lengths, config.tokens_per_block) * self._layout.table_count)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        executor, _ = assemble(config, pool, self._max_sequence_tokens, decoder, self._layout)
        run(executor, pool, lengths)
        torch.cuda.synchronize()
        cache_bytes = (pool.total_blocks + 1) * self._block_bytes
        step = torch.cuda.max_memory_allocated() - before - cache_bytes
        del executor, _
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        step += step * max(mixed_sizes(config.max_step_tokens), default=0) // config.max_step_tokens
        counts = config.max_batch_size * self._shape.vocabulary * 4  # tokens counted for penalties
        return MemoryFound(total, free, step + counts + _MARGIN_BYTES)
