"""What each family of models makes of its configuration: a shape, and where its tensors are.

All of them are Llamas with departures, and each function says its family's. `assumed` is what a family's
configuration class in transformers fills in where config.json is silent.
"""

from __future__ import annotations

from dataclasses import replace

from python_backend.engine.models.blueprint import (
    FULL,
    SLIDING,
    Blueprint,
    decoder_shape,
    layer_types,
    with_windows,
)
from python_backend.engine.models.config import Config
from python_backend.engine.models.layout import Layout
from python_backend.engine.models.rope import RopeSettings, make_rope, no_rope


def llama(config: Config) -> Blueprint:
    has_bias = bool(config.get("attention_bias"))
    layout = Layout(
        is_tied=bool(config.get("tie_word_embeddings")),
        has_qkv_bias=has_bias,
        has_attention_out_bias=has_bias,
        has_mlp_bias=bool(config.get("mlp_bias")),
    )
    return Blueprint(decoder_shape(config), layout)


def mistral(config: Config) -> Blueprint:
    plain = llama(config)
    everywhere = [SLIDING] * plain.shape.layers
    return replace(plain, shape=with_windows(plain.shape, everywhere, config.get("sliding_window")))


def qwen2(config: Config) -> Blueprint:
    plain = qwen3(config)
    layout = replace(plain.layout, has_qkv_bias=True, has_attention_out_bias=False, has_head_norms=False)
    return replace(plain, layout=layout)


def qwen3(config: Config) -> Blueprint:
    plain = llama(config)
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    types = layer_types(config, lambda index: index >= config["max_window_layers"])
    return Blueprint(with_windows(plain.shape, types, window), replace(plain.layout, has_head_norms=True))


def smollm3(config: Config) -> Blueprint:
    """Every fourth layer has no rope."""
    plain = llama(config)
    shape, interval = plain.shape, config["no_rope_layer_interval"]
    turns = config.get("no_rope_layers") or [(i + 1) % interval != 0 for i in range(shape.layers)]
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    types = layer_types(config, lambda index: not turns[index])
    shape = replace(
        with_windows(shape, types, window),
        ropes=(*shape.ropes, no_rope(2 * len(shape.ropes[0].inverse_frequencies))),
        rope_of_layer=tuple(0 if turns[index] else 1 for index in range(shape.layers)),
    )
    return replace(plain, shape=shape)


def gemma2(config: Config) -> Blueprint:
    plain = llama(config)
    shape = replace(
        with_windows(
            plain.shape, layer_types(config, lambda index: index % 2 == 0), config["sliding_window"]
        ),
        query_scale=config["query_pre_attn_scalar"] ** -0.5,
        embedding_scale=plain.shape.hidden**0.5,
        weighs_in_fp32=True,
        attention_softcap=config.get("attn_logit_softcapping"),
        logits_softcap=config.get("final_logit_softcapping"),
    )
    return Blueprint(shape, replace(plain.layout, has_output_norms=True, norm_offset=1.0))


def gemma3(config: Config) -> Blueprint:
    """Local layers turn faster and look back through a window; every sixth looks at everything."""
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    types = layer_types(config, lambda index: (index + 1) % pattern != 0)
    ropes = config.get("rope_parameters") or {}
    # The older spelling has one scaling, and it is meant for the layers that look at everything.
    plain = gemma2(config.changed(layer_types=types, rope_parameters=ropes.get(FULL)))
    local = config.changed(
        rope_parameters=ropes.get(SLIDING), rope_scaling=None, rope_theta=config["rope_local_base_freq"]
    )
    shape = replace(
        plain.shape,
        ropes=(*plain.shape.ropes, make_rope(RopeSettings.of(local, plain.shape.head_dim))),
        rope_of_layer=tuple(int(kind == SLIDING) for kind in types),
        attention_softcap=None,
    )
    return Blueprint(shape, replace(plain.layout, has_head_norms=True))


def phi3(config: Config) -> Blueprint:
    plain = mistral(config)
    return replace(plain, layout=replace(plain.layout, is_fused=True))


def granite(config: Config) -> Blueprint:
    """Four factors; those of residual and logits are the weights' own once they are read."""
    plain = llama(config)
    shape = replace(
        plain.shape,
        query_scale=config["attention_multiplier"],
        embedding_scale=config["embedding_multiplier"],
    )
    layout = replace(
        plain.layout,
        residual_scale=config["residual_multiplier"],
        logits_scale=1.0 / config["logits_scaling"],
    )
    return Blueprint(shape, layout)


def olmo2(config: Config) -> Blueprint:
    """Norms behind attention and mlp and not before, and over all query heads as one."""
    plain = llama(config)
    layout = replace(
        plain.layout,
        has_input_norms=False,
        has_output_norms=True,
        has_head_norms=True,
        norms_heads_together=True,
    )
    return Blueprint(replace(plain.shape, weighs_in_fp32=True), layout)
