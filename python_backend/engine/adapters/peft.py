"""Reads an adapter as PEFT writes it: `adapter_config.json` beside `adapter_model.safetensors`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from python_backend.engine.adapters.adapter import Adapter, Pair, Part, part_sizes
from python_backend.engine.adapters.library import CONFIG, WEIGHTS, identity_of
from python_backend.engine.checkpoint.safetensors_files import SafetensorsFiles, read_json
from python_backend.engine.checkpoint.source import unusable
from python_backend.engine.models.config import unsupported
from python_backend.engine.models.decoder import DecoderShape, Weights
from python_backend.engine.models.rope import pair_up

# What PEFT calls the products, as parts of `LayerWeights`: some families have several in one.
_PARTS = {
    "self_attn.q_proj": (Part.QUERY,),
    "self_attn.k_proj": (Part.KEY,),
    "self_attn.v_proj": (Part.VALUE,),
    "self_attn.qkv_proj": (Part.QUERY, Part.KEY, Part.VALUE),
    "self_attn.o_proj": (Part.ATTENTION_OUT,),
    "mlp.gate_proj": (Part.GATE,),
    "mlp.up_proj": (Part.UP,),
    "mlp.gate_up_proj": (Part.GATE, Part.UP),
    "mlp.down_proj": (Part.DOWN,),
}
# Of a pattern that chooses modules by their names: an adapter may bring one that takes for ever, and nothing
# else of the engine runs while it is tried.
_LONGEST_PATTERN = 500
_MOST_REPEATS = 3
_REPEAT = re.compile(r"(?<!\\)[*+{]")
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_MLP = (Part.GATE, Part.UP, Part.DOWN)
_NAME = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")
_MODULE = re.compile(r"(?:model\.)?(?:language_model\.)?layers\.(?P<layer>\d+)\.(?P<product>.+)")
# Settings that make something else of an adapter than two thin matrices, and the name it then has.
_OTHER_KINDS = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "modules_to_save": "modules_to_save",
    "lora_bias": "lora_bias",
    "trainable_token_indices": "trainable_token_indices",
    "layer_replication": "layer_replication",
    "target_parameters": "target_parameters",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow",
}


def read_adapter(directory: Path, name: str, shape: DecoderShape, max_rank: int) -> Adapter:
    """Raises InflightError for what is not there, does not fit the model, or is more than plain LoRA."""
    config = read_json(directory / CONFIG)
    _refuse_other_kinds(name, config)
    files = SafetensorsFiles.of_file(directory / WEIGHTS, config)
    halves: dict[str, dict[str, str]] = {}
    for tensor in files.names():
        found = _NAME.fullmatch(tensor)
        if found is None:
            raise unsupported(f"adapter {name} has the unsupported tensor {tensor}; supported: {_allowed()}")
        halves.setdefault(found["module"], {})[found["side"]] = tensor
    layers: list[dict[Part, Pair]] = [{} for _ in range(shape.layers)]
    for module, sides in halves.items():
        layer, parts = _place_of(name, module, shape)
        if set(sides) != {"A", "B"}:
            raise unusable(f"adapter {name} has only one of lora_A and lora_B for {module}")
        _refuse_misfit(name, module, parts, files.shape(sides["A"]), files.shape(sides["B"]), shape, max_rank)
        shrink, expand = files.read(sides["A"]), files.read(sides["B"])
        scaled = expand * np.float32(_scale(config, module, len(shrink)))
        layers[layer] |= _split(parts, shrink, scaled, shape, layer)
    rank = max((pair.rank for layer in layers for pair in layer.values()), default=0)
    if rank == 0:
        raise unusable(f"adapter {name} changes nothing: {WEIGHTS} has no tensors")
    return Adapter(name, rank, tuple(layers), identity_of(directory, name))


def _refuse_other_kinds(name: str, config: dict[str, Any]) -> None:
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise unsupported(f"adapter {name} is {kind!r}; this engine supports only LoRA adapters")
    for key, title in _OTHER_KINDS.items():
        if config.get(key):
            raise unsupported(f"adapter {name} has {key} set; {title} is not supported, only plain LoRA")
    if config.get("bias", "none") != "none":
        raise unsupported(f"adapter {name} has bias {config['bias']!r}; allowed: none")


def _place_of(name: str, module: str, shape: DecoderShape) -> tuple[int, tuple[Part, ...]]:
    found = _MODULE.fullmatch(module)
    if found is None or found["product"] not in _PARTS:
        raise unsupported(f"adapter {name} changes {module}; supported: {_allowed()}")
    layer, parts = int(found["layer"]), _PARTS[found["product"]]
    if layer >= shape.layers:
        raise unusable(f"adapter {name} changes layer {layer}; the model has {shape.layers} layers")
    if shape.experts is not None and parts[0] in _MLP:
        raise unsupported(
            f"adapter {name} changes {module}; for a model with experts only attention is supported"
        )
    return layer, parts


def _allowed() -> str:
    return ", ".join(sorted(product.partition(".")[2] for product in _PARTS))


def _refuse_misfit(
    name: str,
    module: str,
    parts: tuple[Part, ...],
    shrink: tuple[int, ...],
    expand: tuple[int, ...],
    shape: DecoderShape,
    max_rank: int,
) -> None:
    """By the header, before the numbers are read: they may be more than there is memory for."""
    sizes = part_sizes(shape)
    inputs, outputs = sizes[parts[0]][0], sum(sizes[part][1] for part in parts)
    rank = shrink[0] if shrink else 0
    if shrink != (rank, inputs) or expand != (outputs, rank):
        raise unusable(
            f"adapter {name} was made for another model: {module} has {shrink} and {expand}; "
            f"expected ({rank}, {inputs}) and ({outputs}, {rank})"
        )
    if not 1 <= rank <= max_rank:
        raise unsupported(
            f"adapter {name} has rank {rank} at {module}; allowed: 1 to {max_rank} "
            "(inflight_max_adapter_rank)"
        )


def _scale(config: dict[str, Any], module: str, rank: int) -> float:
    alpha = config.get("lora_alpha", 8)
    for pattern, other in (config.get("alpha_pattern") or {}).items():
        if _fits(pattern, module):
            alpha = other
    if not isinstance(alpha, (int, float)):
        raise unusable(f"lora_alpha is {alpha!r}; it must be a number")
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))


def _fits(pattern: str, module: str) -> bool:
    """Whether PEFT's pattern means this module."""
    is_long = len(pattern) > _LONGEST_PATTERN or len(_REPEAT.findall(pattern)) > _MOST_REPEATS
    if is_long or _REPEATED_GROUP.search(pattern):
        raise unsupported(
            f"alpha_pattern has {pattern[:100]!r}; allowed: up to {_LONGEST_PATTERN} characters with at most "
            f"{_MOST_REPEATS} repetitions, none of them of a group"
        )
    try:
        return re.match(rf"(.*\.)?({pattern})$", module) is not None
    except (re.error, RecursionError) as error:
        raise unusable(f"alpha_pattern has {pattern[:100]!r}: {error}") from error


def _split(
    parts: tuple[Part, ...], shrink: Weights, expand: Weights, shape: DecoderShape, layer: int
) -> dict[Part, Pair]:
    """Each part of a fused product has the same first matrix, and its own rows of the second."""
    sizes = part_sizes(shape)
    rotary_dim = 2 * len(shape.ropes[shape.rope_of_layer[layer]].inverse_frequencies)
    heads = {Part.QUERY: shape.heads, Part.KEY: shape.kv_heads}
    pairs, first = {}, 0
    for part in parts:
        rows = expand[first : first + sizes[part][1]]
        first += len(rows)
        pairs[part] = Pair(shrink, pair_up(rows, heads[part], rotary_dim) if part in heads else rows)
    return pairs
