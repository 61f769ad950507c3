"""The GPU's engine, wherever the tests run: on the GPU, or interpreted on the CPU."""

from __future__ import annotations

import torch

from python_backend.engine.build import adapter_shelf, build_engine
from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.config import EngineConfig, EngineLimits
from python_backend.engine.cuda.build import assemble, gpu_layout, kv_dtype
from python_backend.engine.cuda.decoder import CudaDecoder
from python_backend.engine.cuda.host_cache import host_blocks
from python_backend.engine.cuda.kv_cache import kv_bytes_per_block
from python_backend.engine.cuda.linear import Linear
from python_backend.engine.cuda.weights import place_weights
from python_backend.engine.engine import Engine
from python_backend.engine.guides.ports import GuideCompiler
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.models import load_weights


def build_cuda_engine(config: EngineConfig, device: str, compiler: GuideCompiler | None = None) -> Engine:
    """In fp32, so that its answers can be held against those of transformers."""
    if device == "cuda":
        engine = build_engine(config)
        engine._preparations._compiler = compiler or engine._preparations._compiler
        return engine
    weights = load_weights(Checkpoint(config.checkpoint_dir))
    placed = place_weights(weights, torch.from_numpy, Linear, lambda done, total: None, torch.device("cpu"))
    shape, size = weights.shape, config.tokens_per_block
    layout = gpu_layout(config, shape, shape.max_positions)
    pool = BlockPool(
        layout.blocks_for(config.max_tokens_in_kv_cache or 4096, size), size, window=layout.window
    )
    longest = min(shape.max_positions, pool.capacity_tokens)
    decoder = CudaDecoder(shape, placed, longest)
    executor, _ = assemble(config, pool, longest, decoder, layout)
    block_bytes = kv_bytes_per_block(shape, layout.block_layers, size, kv_dtype(config, decoder.dtype))
    pool.host = host_blocks(executor.cache, block_bytes, config.host_cache_bytes)
    shelf = adapter_shelf(config, shape, executor.adapters)
    limits = EngineLimits(shape.vocabulary, longest)
    return Engine(config, limits, pool, executor, compiler, shelf=shelf, speculates=config.speculates)
