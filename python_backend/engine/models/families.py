"""What each family of models makes of its configuration: a shape, and where its tensors are.

All of them are Llamas with departures, and each function says its family's. `assumed` is what a family's
configuration class in transformers fills in where config.json is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from python_backend.engine.models.config import Config, unsupported
from python_backend.engine.models.decoder import Activation, DecoderShape, ExpertShape
from python_backend.engine.models.reader import ExpertLayout, Layout
from python_backend.engine.models.rope import RopeSettings, make_rope, no_rope

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Blueprint:
    shape: DecoderShape
    layout: Layout


@dataclass(frozen=True, slots=True)
class Family:
    blueprint: Callable[[Config], Blueprint]
    assumed: Mapping[str, Any] = field(default_factory=dict)


def _shape(config: Config) -> DecoderShape:
    if config.get("quantization_config"):
        raise unsupported("quantization_config is set; this engine loads unquantized weights")
    if config.get("use_bidirectional_attention"):
        raise unsupported("use_bidirectional_attention is set; this engine reads from left to right")
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
        raise unsupported(f"{key} is {name!r}; this engine knows {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _layer_types(config: Config, is_sliding: Callable[[int], bool]) -> list[str]:
    """What config.json says of each layer, or what the family's rule says where it is silent."""
    layers = config["num_hidden_layers"]
    types = config.get("layer_types") or [_SLIDING if is_sliding(i) else _FULL for i in range(layers)]
    if strange := set(types) - {_FULL, _SLIDING}:
        raise unsupported(f"layer_types has {min(strange)!r}; this engine knows {_FULL}, {_SLIDING}")
    if len(types) != layers:
        raise unsupported(f"layer_types names {len(types)} layers; there are {layers}")
    return list(types)


def _with_windows(shape: DecoderShape, types: list[str], window: int | None) -> DecoderShape:
    return replace(shape, windows=tuple((window or None) if kind == _SLIDING else None for kind in types))


def llama(config: Config) -> Blueprint:
    has_bias = bool(config.get("attention_bias"))
    layout = Layout(
        is_tied=bool(config.get("tie_word_embeddings")),
        has_qkv_bias=has_bias,
        has_attention_out_bias=has_bias,
        has_mlp_bias=bool(config.get("mlp_bias")),
    )
    return Blueprint(_shape(config), layout)


def mistral(config: Config) -> Blueprint:
    plain = llama(config)
    everywhere = [_SLIDING] * plain.shape.layers
    return replace(plain, shape=_with_windows(plain.shape, everywhere, config.get("sliding_window")))


def qwen2(config: Config) -> Blueprint:
    plain = qwen3(config)
    layout = replace(plain.layout, has_qkv_bias=True, has_attention_out_bias=False, has_head_norms=False)
    return replace(plain, layout=layout)


def qwen3(config: Config) -> Blueprint:
    plain = llama(config)
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    types = _layer_types(config, lambda index: index >= config["max_window_layers"])
    return Blueprint(_with_windows(plain.shape, types, window), replace(plain.layout, has_head_norms=True))


def smollm3(config: Config) -> Blueprint:
    """Every fourth layer has no rope."""
    plain = llama(config)
    shape, interval = plain.shape, config["no_rope_layer_interval"]
    turns = config.get("no_rope_layers") or [(i + 1) % interval != 0 for i in range(shape.layers)]
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    types = _layer_types(config, lambda index: not turns[index])
    shape = replace(
        _with_windows(shape, types, window),
        ropes=(*shape.ropes, no_rope(2 * len(shape.ropes[0].inverse_frequencies))),
        rope_of_layer=tuple(0 if turns[index] else 1 for index in range(shape.layers)),
    )
    return replace(plain, shape=shape)


def gemma2(config: Config) -> Blueprint:
    plain = llama(config)
    shape = replace(
        _with_windows(
            plain.shape, _layer_types(config, lambda index: index % 2 == 0), config["sliding_window"]
        ),
        query_scale=config["query_pre_attn_scalar"] ** -0.5,
        embedding_scale=plain.shape.hidden**0.5,
        weighs_in_fp32=True,
        attention_softcap=config.get("attn_logit_softcapping"),
        logits_softcap=config.get("final_logit_softcapping"),
    )
    return Blueprint(shape, replace(plain.layout, has_sandwich_norms=True, norm_offset=1.0))


def gemma3(config: Config) -> Blueprint:
    """Local layers turn faster and look back through a window; every sixth looks at everything."""
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    types = _layer_types(config, lambda index: (index + 1) % pattern != 0)
    ropes = config.get("rope_parameters") or {}
    # The older spelling has one scaling, and it is meant for the layers that look at everything.
    plain = gemma2(config.changed(layer_types=types, rope_parameters=ropes.get(_FULL)))
    local = config.changed(
        rope_parameters=ropes.get(_SLIDING), rope_scaling=None, rope_theta=config["rope_local_base_freq"]
    )
    shape = replace(
        plain.shape,
        ropes=(*plain.shape.ropes, make_rope(RopeSettings.of(local, plain.shape.head_dim))),
        rope_of_layer=tuple(int(kind == _SLIDING) for kind in types),
        attention_softcap=None,
    )
    return Blueprint(shape, replace(plain.layout, has_head_norms=True))


def phi3(config: Config) -> Blueprint:
    plain = mistral(config)
    return replace(plain, layout=replace(plain.layout, is_fused=True))


def mixtral(config: Config) -> Blueprint:
    plain = mistral(config)
    experts = ExpertShape(
        count=config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=plain.shape.intermediate,
        renormalizes=True,
    )
    places = ExpertLayout(("block_sparse_moe", "mlp"), "w1", "w3", "w2", is_sparse=lambda index: True)
    return _with_experts(plain, experts, places)


def qwen3_moe(config: Config) -> Blueprint:
    plain = mistral(config if config.get("use_sliding_window") else config.changed(sliding_window=None))
    experts = ExpertShape(
        count=config.get("num_experts") or config["num_local_experts"],
        per_token=config["num_experts_per_tok"],
        intermediate=config["moe_intermediate_size"],
        renormalizes=bool(config.get("norm_topk_prob")),
    )
    dense, step = config.get("mlp_only_layers") or [], config["decoder_sparse_step"]
    places = ExpertLayout(
        ("mlp",),
        "gate_proj",
        "up_proj",
        "down_proj",
        is_sparse=lambda index: index not in dense and (index + 1) % step == 0,
    )
    return _with_experts(replace(plain, layout=replace(plain.layout, has_head_norms=True)), experts, places)


def _with_experts(plain: Blueprint, experts: ExpertShape, places: ExpertLayout) -> Blueprint:
    return Blueprint(replace(plain.shape, experts=experts), replace(plain.layout, experts=places))


_GEMMA = {
    "tie_word_embeddings": True,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_QWEN = {"max_window_layers": 28, "sliding_window": 4096}

# By the architecture's name in config.json.
FAMILIES = {
    "LlamaForCausalLM": Family(llama),
    "MistralForCausalLM": Family(mistral, {"sliding_window": 4096}),
    "Qwen2ForCausalLM": Family(qwen2, _QWEN),
    "Qwen3ForCausalLM": Family(qwen3, {**_QWEN, "head_dim": 128}),
    "SmolLM3ForCausalLM": Family(
        smollm3, {"tie_word_embeddings": True, "no_rope_layer_interval": 4, "rope_theta": 2e6}
    ),
    "Gemma2ForCausalLM": Family(
        gemma2, {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    ),
    "Gemma3ForCausalLM": Family(gemma3, {**_GEMMA, "rope_theta": 1e6, "rope_local_base_freq": 1e4}),
    "Phi3ForCausalLM": Family(phi3, {"original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5}),
    "MixtralForCausalLM": Family(
        mixtral,
        {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "Qwen3MoeForCausalLM": Family(
        qwen3_moe,
        {
            "sliding_window": 4096,
            "decoder_sparse_step": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
    ),
}
