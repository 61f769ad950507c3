"""What every family's blueprint is made of: the shape that a configuration implies, before its departures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from python_backend.engine.models.config import Config, unsupported
from python_backend.engine.models.decoder import Activation, DecoderShape
from python_backend.engine.models.layout import Layout
from python_backend.engine.models.rope import RopeSettings, make_rope

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Blueprint:
    shape: DecoderShape
    layout: Layout


@dataclass(frozen=True, slots=True)
class Family:
    """With a `text_type`, it is the text of a model that sees, and its `text_config` is of that type.

    `particularities` is what the documentation says of it.
    """

    blueprint: Callable[[Config], Blueprint]
    particularities: str
    assumed: Mapping[str, Any] = field(default_factory=dict)
    text_type: str | None = None


def decoder_shape(config: Config) -> DecoderShape:
    if config.get("use_bidirectional_attention"):
        raise unsupported("use_bidirectional_attention is set; this engine supports only causal attention")
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = RopeSettings.of(config, head_dim)
    return DecoderShape(
        layers=layers,
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        vocabulary=config["vocab_size"],
        max_positions=rope.usable_positions,
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        activation=_activation(config),
        query_scale=head_dim**-0.5,
        ropes=(make_rope(rope),),
        rope_of_layer=(0,) * layers,
        windows=(None,) * layers,
    )


def _activation(config: Config) -> Activation:
    key = "hidden_activation" if config.get("hidden_activation") else "hidden_act"
    name = config.get(key, "silu")
    if name not in _ACTIVATIONS:
        raise unsupported(f"{key} is {name!r}; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def layer_types(config: Config, is_sliding: Callable[[int], bool]) -> list[str]:
    """What config.json says of each layer, or what the family's rule says where it is silent."""
    layers = config["num_hidden_layers"]
    types = config.get("layer_types") or [SLIDING if is_sliding(i) else FULL for i in range(layers)]
    if strange := set(types) - {FULL, SLIDING}:
        raise unsupported(f"layer_types has {min(strange)!r}; supported: {FULL}, {SLIDING}")
    if len(types) != layers:
        raise unsupported(f"layer_types names {len(types)} layers; there are {layers}")
    return list(types)


def with_windows(shape: DecoderShape, types: list[str], window: int | None) -> DecoderShape:
    return replace(shape, windows=tuple((window or None) if kind == SLIDING else None for kind in types))
