"""ModernBERT: norms come first, positions are rotations, in most layers tokens see only their vicinity."""

from __future__ import annotations

from python_backend.embeddings.families.reader import (
    Family,
    Reader,
    Values,
    require,
    usual_shape,
)
from python_backend.embeddings.layers import Encoder, Head, Layer, Shape

_WORDS = "embeddings.tok_embeddings.weight"
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_THETAS = {_LOCAL: ("local_rope_theta", 10_000.0), _GLOBAL: ("global_rope_theta", 160_000.0)}


def _shape(values: Values) -> Shape:
    require(
        values, hidden_activation="gelu", classifier_activation="gelu", classifier_pooling=("cls", "mean")
    )
    require(values, rope_scaling=None)
    epsilon = float(values.get("norm_eps", 1e-5))
    return usual_shape(values, "modernbert", int(values["max_position_embeddings"]), epsilon=epsilon)


def _modernbert(read: Reader) -> Encoder:
    shape, has_bias = read.shape, bool(read.config.get("norm_bias", False))
    return Encoder(
        shape,
        read.tensor(_WORDS, shape.vocabulary, shape.hidden),
        None,
        None,
        read.norm("embeddings.norm", has_bias),
        tuple(_layer(read, index) for index in range(shape.layers)),
        is_pre_norm=True,
        final_norm=read.norm("final_norm", has_bias),
    )


def _layer(read: Reader, index: int) -> Layer:
    config, name = read.config, f"layers.{index}."
    hidden, wide = read.shape.hidden, read.shape.feed_forward
    of_norms, of_attention, of_mlp = (
        bool(config.get(key, False)) for key in ("norm_bias", "attention_bias", "mlp_bias")
    )
    kind = _kind(config, index)
    old_key, default = _THETAS[kind]
    rope = (config.get("rope_parameters") or {}).get(kind) or {}
    return Layer(
        read.linear(f"{name}attn.Wqkv", hidden, 3 * hidden, of_attention),
        read.linear(f"{name}attn.Wo", hidden, hidden, of_attention),
        read.norm(f"{name}attn_norm", of_norms) if index else None,
        read.linear(f"{name}mlp.Wi", hidden, 2 * wide, of_mlp),
        read.linear(f"{name}mlp.Wo", wide, hidden, of_mlp),
        read.norm(f"{name}mlp_norm", of_norms),
        is_gated=True,
        rope=read.rope(rope, float(config.get(old_key, default))),
        window=int(config.get("local_attention", 128)) // 2 if kind == _LOCAL else None,
    )


def _kind(config: Values, index: int) -> str:
    if config.get("layer_types"):
        return str(config["layer_types"][index])
    return _LOCAL if index % int(config.get("global_attn_every_n_layers", 3)) else _GLOBAL


def _head(read: Reader) -> Head:
    config, hidden, beside = read.config, read.shape.hidden, read.beside()
    dense = beside.linear("head.dense", hidden, hidden, bool(config.get("classifier_bias", False)))
    norm = beside.norm("head.norm", bool(config.get("norm_bias", False)))
    return Head(beside.linear("classifier", hidden, 1), dense, "gelu", norm)


MODERNBERT = Family(_shape, _WORDS, ("model.",), _modernbert, _head)
