"""nomic's BERT: rotated positions, gated layers; a config with the keys of its authors or of transformers."""

from __future__ import annotations

from python_backend.embeddings.families.bert import WORDS, pooler_head
from python_backend.embeddings.families.reader import (
    Family,
    Reader,
    Values,
    require,
    usual_shape,
)
from python_backend.embeddings.layers import Encoder, Layer, Shape

_THETA = 1000.0


def _shape(values: Values) -> Shape:
    require(values, activation_function="swiglu", hidden_act="silu", prenorm=False, parallel_block=False)
    require(values, use_rms_norm=(False, None), num_experts=(0, None), moe_every_n_layers=(0, None))
    require(values, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_scaling_factor=None)
    if "n_embd" in values:
        values = _renamed(values)
    return usual_shape(
        values,
        "nomic_bert",
        int(values["max_position_embeddings"]),
        epsilon=float(values.get("layer_norm_eps", 1e-12)),
        activation="silu",
        types=int(values["type_vocab_size"]),
    )


def _renamed(values: Values) -> Values:
    """Beyond the positions that it was trained with its authors stretch it, which is not computed here."""
    return {
        "num_hidden_layers": values["n_layer"],
        "hidden_size": values["n_embd"],
        "num_attention_heads": values["n_head"],
        "intermediate_size": values.get("n_inner") or 4 * int(values["n_embd"]),
        "vocab_size": values["vocab_size"],
        "max_position_embeddings": values.get("max_trained_positions") or values["n_positions"],
        "layer_norm_eps": values.get("layer_norm_epsilon", 1e-12),
        "type_vocab_size": values.get("type_vocab_size", 2),
    }


def _nomic(read: Reader) -> Encoder:
    shape = read.shape
    return Encoder(
        shape,
        read.tensor(WORDS, shape.vocabulary, shape.hidden),
        None,
        read.tensor("embeddings.token_type_embeddings.weight", shape.types, shape.hidden),
        read.norm("emb_ln"),
        tuple(_layer(read, f"encoder.layers.{index}.") for index in range(shape.layers)),
    )


def _layer(read: Reader, name: str) -> Layer:
    config, hidden, wide = read.config, read.shape.hidden, read.shape.feed_forward
    of_attention, of_up, of_down = (
        bool(config.get(key, False)) for key in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
    )
    default = float(config.get("rotary_emb_base", _THETA))
    return Layer(
        read.linear(f"{name}attn.Wqkv", hidden, 3 * hidden, of_attention),
        read.linear(f"{name}attn.out_proj", hidden, hidden, of_attention),
        read.norm(f"{name}norm1"),
        read.joined([f"{name}mlp.fc12", f"{name}mlp.fc11"], hidden, wide, of_up),
        read.linear(f"{name}mlp.fc2", wide, hidden, of_down),
        read.norm(f"{name}norm2"),
        is_gated=True,
        rope=read.rope(config.get("rope_parameters") or {}, default),
    )


NOMIC = Family(_shape, WORDS, ("nomic_bert.", "bert."), _nomic, pooler_head)
