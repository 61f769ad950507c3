"""From a checkpoint directory to an engine that is ready to step."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from python_backend.engine.blocks import BlockPool
from python_backend.engine.engine import Engine, EngineConfig, EngineLimits
from python_backend.engine.executor import TorchExecutor
from python_backend.engine.kv_cache import KvCache, default_kv_tokens
from python_backend.engine.loader import Checkpoint
from python_backend.engine.models import load_model

if TYPE_CHECKING:
    from python_backend.engine.models.model import ModelLimits

_log = logging.getLogger(__name__)


def build_engine(config: EngineConfig) -> Engine:
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    model = load_model(Checkpoint(config.checkpoint_dir))
    max_sequence_tokens = _max_sequence_tokens(config, model.limits)
    kv_tokens = config.max_tokens_in_kv_cache or default_kv_tokens(model.limits.kv, max_sequence_tokens)
    pool = BlockPool(max(1, kv_tokens // config.tokens_per_block), config.tokens_per_block)
    if pool.capacity_tokens < max_sequence_tokens:
        _log.warning(
            "the KV cache holds %d tokens; sequences are limited to that, not to %d",
            pool.capacity_tokens,
            max_sequence_tokens,
        )
        max_sequence_tokens = pool.capacity_tokens
    cache = KvCache(model.limits.kv, pool.total_blocks, pool.tokens_per_block)
    limits = EngineLimits(model.limits.vocabulary, max_sequence_tokens)
    return Engine(config, limits, pool, TorchExecutor(model, cache))


def _max_sequence_tokens(config: EngineConfig, limits: ModelLimits) -> int:
    wanted = config.max_sequence_tokens or limits.max_positions
    if wanted > limits.max_positions:
        raise ValueError(
            f"max_sequence_tokens is {wanted}; the model has positions for {limits.max_positions}"
        )
    return wanted
