"""Llama, Mistral, Qwen2 and Qwen3 as the engine reads them, without what chooses words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from python_backend.embeddings.families.reader import Family, Reader, Values, require
from python_backend.embeddings.layers import Encoder, Floats, Head, Layer, Linear, Norm, Rope, Shape
from python_backend.engine.checkpoint import unusable
from python_backend.engine.models import FAMILIES, load_weights
from python_backend.engine.models.config import Config
from python_backend.engine.models.decoder import DecoderShape, DecoderWeights, LayerWeights, dense
from python_backend.wire.model_files import DECODER_TOKENS

_WORDS, _PARENT = "embed_tokens.weight", "model."
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def _shape(values: Values) -> Shape:
    require(values, hidden_act="silu", is_causal=True)
    if "AutoModel" in (values.get("auto_map") or {}):
        raise unusable("config.json: auto_map names custom code of the model, which is not run here")
    if values.get("quantization_config"):
        raise unusable("quantization_config is set; vectors are computed from unquantised weights")
    family = FAMILIES[_ARCHITECTURES[values["model_type"]]]
    shape = family.blueprint(Config(values, family.assumed)).shape
    return Shape(
        values["model_type"],
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.intermediate,
        shape.vocabulary,
        min(shape.max_positions, DECODER_TOKENS),
        shape.norm_epsilon,
        activation="silu",
        own_kv_heads=shape.kv_heads,
        own_head_size=shape.head_dim,
    )


class _AsInTheEngine:
    """A checkpoint by the names that it would have as a model of text."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self.config = dict(read.config)
        self.path = Path("config.json")
        self.architectures = [_ARCHITECTURES[self.config["model_type"]]]
        self.quantized_bytes = None

    def __contains__(self, name: str) -> bool:
        read, known = self._place(name)
        return read.has(known)

    def tensor(self, name: str, *shape: int) -> Floats:
        read, known = self._place(name)
        return read.tensor(known, *shape)

    def matrix(self, name: str, *shape: int) -> Floats:
        return self.tensor(name, *shape)

    def _place(self, name: str) -> tuple[Reader, str]:
        is_inside = name.startswith(_PARENT)
        return (self._read, name.removeprefix(_PARENT)) if is_inside else (self._read.beside(), name)


def _decoder(read: Reader) -> Encoder:
    weights = load_weights(_AsInTheEngine(read))
    return Encoder(
        read.shape,
        weights.embeddings(),
        None,
        None,
        None,
        _layers(weights),
        is_pre_norm=True,
        final_norm=_rms(weights.final_norm(), weights.shape),
        is_causal=True,
    )


def _layers(weights: DecoderWeights) -> Iterator[Layer]:
    shape = weights.shape
    for index in range(shape.layers):
        rope = shape.ropes[shape.rope_of_layer[index]]
        turns = Rope(tuple(rope.inverse_frequencies.tolist()), rope.magnitude, is_paired=True)
        yield _layer(weights.layer(index), shape, turns, shape.windows[index])


def _layer(weights: LayerWeights, shape: DecoderShape, rope: Rope, window: int | None) -> Layer:
    assert weights.gate_up is not None
    assert weights.down is not None
    assert weights.attention_norm is not None
    assert weights.mlp_norm is not None
    norms = (weights.query_norm, weights.key_norm)
    query_norm, key_norm = (None if each is None else _rms(each, shape) for each in norms)
    return Layer(
        Linear(dense(weights.qkv).T, weights.qkv_bias),
        Linear(dense(weights.attention_out).T, weights.attention_out_bias),
        _rms(weights.attention_norm, shape),
        Linear(dense(weights.gate_up).T, weights.gate_up_bias),
        Linear(dense(weights.down).T, weights.down_bias),
        _rms(weights.mlp_norm, shape),
        is_gated=True,
        rope=rope,
        window=None if window is None else window - 1,  # which counts the token itself
        query_norm=query_norm,
        key_norm=key_norm,
    )


def _rms(weight: Floats, shape: DecoderShape) -> Norm:
    return Norm(weight, None, shape.norm_epsilon, is_rms=True)


def _classifier(read: Reader) -> Head:
    return Head(read.beside().linear("score", read.shape.hidden, 1, has_bias=False))


def word_head(read: Reader, yes_id: int, no_id: int | None) -> Head:
    """How much rather a decoder would say yes than no; without a no, how much it would say yes."""
    weights = load_weights(_AsInTheEngine(read))
    rows = weights.head()
    rows = weights.embeddings() if rows is None else rows
    row: Any = rows[yes_id] if no_id is None else rows[yes_id] - rows[no_id]
    return Head(Linear(np.ascontiguousarray(row)[:, None]))


DECODER = Family(_shape, _WORDS, (_PARENT,), _decoder, _classifier)
