"""From a checkpoint to an engine that is ready to step."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from python_backend.engine.adapters.shelf import AdapterShelf, reader_of
from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.config import EngineConfig, EngineLimits
from python_backend.engine.engine import Engine
from python_backend.engine.guides import GuideCompiler, GuideLimits
from python_backend.engine.host.cache_dir import cache_dir
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.layout import KvLayout, kv_layout
from python_backend.engine.kv.size import default_blocks, kv_bytes_per_block, kv_bytes_per_number
from python_backend.engine.models import load_weights, longest_sequence
from python_backend.engine.report import LoadingProgress, ignore_progress
from python_backend.engine.steps.cost_memory import CostMemory, files_of
from python_backend.engine.steps.executor import ModelExecutor
from python_backend.host.cores import available_cores

if TYPE_CHECKING:
    from python_backend.engine.adapters.adapter import AdapterMemory
    from python_backend.engine.models.decoder import DecoderShape, DecoderWeights
    from python_backend.engine.native.model import NativeModel
    from python_backend.engine.steps.ports import Executor

_log = logging.getLogger(__name__)
# Over prompts, in speeds of products: in bf16 on an H200, and in fp32 beside int8 on two x86 cores.
_ATTENTION_SPEEDS = {"cuda": 1 / 2, "cpu": 1 / 6}


def build_engine(config: EngineConfig, progress: LoadingProgress = ignore_progress) -> Engine:
    weights = _open_weights(config)
    wanted_tokens = longest_sequence(weights.shape, config.max_sequence_tokens)
    pool, executor, adapters = _place(config, weights, wanted_tokens, progress)
    max_sequence_tokens = min(wanted_tokens, pool.capacity_tokens)
    if max_sequence_tokens < wanted_tokens:
        _log.warning(
            "the KV cache holds %d tokens; sequences are limited to that instead of %d",
            max_sequence_tokens,
            wanted_tokens,
        )
    if (window := pool.window) is not None:
        held = pool.tokens_held(max_sequence_tokens)
        _log.info(
            "layers with a sliding window keep %d tokens: the KV cache holds %d tokens in sequences of %d",
            window.tokens,
            held,
            max_sequence_tokens,
        )
    even_context = weights.shape.even_context(_ATTENTION_SPEEDS[config.device])
    limits = EngineLimits(weights.shape.vocabulary, max_sequence_tokens, even_context)
    compiler, costs = _guide_compiler(config, weights.shape), _cost_memory(config)
    shelf = adapter_shelf(config, weights.shape, adapters)
    engine = Engine(
        config,
        limits,
        pool,
        executor,
        compiler,
        held_bytes=_held_bytes(config.device),
        memory=costs,
        shelf=shelf,
        speculates=config.speculates,
    )
    if costs is not None:
        engine.try_alone()
    return engine


def _held_bytes(device: str) -> Callable[[], tuple[int, int]]:
    if device != "cuda":
        return lambda: (0, 0)
    from python_backend.engine.cuda.memory import held_bytes

    return held_bytes


def adapter_shelf(
    config: EngineConfig, shape: DecoderShape, memory: AdapterMemory | None
) -> AdapterShelf | None:
    if memory is None or config.adapters_dir is None or config.max_adapters == 0:
        return None
    return AdapterShelf(memory, reader_of(Path(config.adapters_dir), shape, config.max_adapter_rank))


def _cost_memory(config: EngineConfig) -> CostMemory | None:
    if config.machine is None:
        return None
    settings = (config.device, config.machine, config.precision, config.threads or available_cores())
    kept = () if config.kv_precision == "auto" else (config.kv_precision,)
    files = files_of(Path(config.checkpoint_dir))
    return CostMemory(_packed_cache(config) / "step-costs", files, *settings, *kept)


def _packed_cache(config: EngineConfig) -> Path:
    return Path(config.packed_cache_dir) if config.packed_cache_dir else cache_dir() / "packed"


def _open_weights(config: EngineConfig) -> DecoderWeights:
    if config.random_weights:
        from python_backend.engine.checkpoint.shapes_only import ShapesOnly
        from python_backend.engine.cuda.random_weights import RepeatedLayers

        return RepeatedLayers(load_weights(ShapesOnly(config.checkpoint_dir), config.max_sequence_tokens))
    return load_weights(Checkpoint(config.checkpoint_dir), config.max_sequence_tokens)


def _place(
    config: EngineConfig, weights: DecoderWeights, max_sequence_tokens: int, progress: LoadingProgress
) -> tuple[BlockPool, Executor, AdapterMemory | None]:
    if config.device == "cuda":
        # Imported here: torch takes seconds, and on a machine without a GPU need not be there.
        from python_backend.engine.cuda.build import build_on_gpu

        pool, executor = build_on_gpu(config, weights, max_sequence_tokens, progress)
        return pool, executor, executor.adapters
    size = config.tokens_per_block
    layout = kv_layout(weights.shape.windows, max_sequence_tokens, config.max_step_tokens)
    number_bytes = kv_bytes_per_number(config.precision == "fp32")
    block_bytes = kv_bytes_per_block(weights.shape, layout.block_layers, size, number_bytes)
    blocks = default_blocks(block_bytes, layout.blocks_of_one(max_sequence_tokens, size))
    if (tokens := config.max_tokens_in_kv_cache) is not None:
        blocks = layout.blocks_for(tokens, size)
    pool = BlockPool(blocks, size, window=layout.window)
    model = build_model(config, weights, pool, min(max_sequence_tokens, pool.capacity_tokens), layout)
    return pool, ModelExecutor(model), model.adapters


def build_model(
    config: EngineConfig,
    weights: DecoderWeights,
    pool: BlockPool,
    max_sequence_tokens: int,
    layout: KvLayout | None = None,
) -> NativeModel:
    # Imported here: they take a second, which a reader of this module's types need not wait for.
    from python_backend.engine.native.model import NativeModel
    from python_backend.engine.native.packed_model import FORMATS, load_packed

    checkpoint = Path(config.checkpoint_dir)
    arrays = load_packed(weights, checkpoint, config.precision, _packed_cache(config))
    model = NativeModel(
        weights.shape,
        arrays,
        FORMATS[config.precision],
        pool.total_blocks,
        pool.tokens_per_block,
        max_sequence_tokens,
        config.threads or available_cores(),
        config.max_adapters if config.adapters_dir else 0,
        config.max_adapter_rank,
        layout,
    )
    model.warm_up()
    return model


def _guide_compiler(config: EngineConfig, shape: DecoderShape) -> GuideCompiler | None:
    """None where there is no tokenizer: a guide is about text, which the engine otherwise never sees."""
    directory = Path(config.tokenizer_dir or config.checkpoint_dir)
    if not (directory / "tokenizer.json").is_file():
        return None
    limits = GuideLimits(compile_s=config.guide_compile_limit_s)
    compiler = GuideCompiler(directory / "tokenizer.json", shape.vocabulary, _end_ids(directory), limits)
    compiler.read_tokens()
    return compiler


def _end_ids(directory: Path) -> set[int]:
    """Every id that some file beside the tokenizer calls an end."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        try:
            end = json.loads((directory / name).read_text()).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        found |= {end} if isinstance(end, int) else set(end or ())
    return found
