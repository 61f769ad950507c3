"""MPNet: distances between tokens count, by a table that all layers share."""

from __future__ import annotations

import math

import numpy as np

from python_backend.embeddings.families.bert import WORDS, dense_head
from python_backend.embeddings.families.reader import Family, Reader, Values, require, usual_shape
from python_backend.embeddings.layers import Encoder, Layer, Shape

_BUCKETS, _FARTHEST = 32, 128
_PADDING = 1  # fixed in its reference implementation


def _shape(values: Values) -> Shape:
    require(values, hidden_act="gelu", relative_attention_num_buckets=_BUCKETS)
    positions = int(values["max_position_embeddings"]) - _PADDING - 1
    epsilon = float(values["layer_norm_eps"])
    return usual_shape(values, "mpnet", positions, epsilon=epsilon, padding=_PADDING)


def _mpnet(read: Reader) -> Encoder:
    shape = read.shape
    by_bucket = read.tensor("encoder.relative_attention_bias.weight", _BUCKETS, shape.heads)
    distances = range(1 - shape.positions, shape.positions)
    return Encoder(
        shape,
        read.tensor(WORDS, shape.vocabulary, shape.hidden),
        read.tensor("embeddings.position_embeddings.weight", shape.places, shape.hidden),
        None,
        read.norm("embeddings.LayerNorm"),
        tuple(_layer(read, f"encoder.layer.{index}.") for index in range(shape.layers)),
        relative=by_bucket[[bucket_of(distance) for distance in distances]],
    )


def _layer(read: Reader, name: str) -> Layer:
    hidden, wide = read.shape.hidden, read.shape.feed_forward
    return Layer(
        read.joined([f"{name}attention.attn.{part}" for part in "qkv"], hidden, hidden),
        read.linear(f"{name}attention.attn.o", hidden, hidden),
        read.norm(f"{name}attention.LayerNorm"),
        read.linear(f"{name}intermediate.dense", hidden, wide),
        read.linear(f"{name}output.dense", wide, hidden),
        read.norm(f"{name}output.LayerNorm"),
    )


def bucket_of(distance: int) -> int:
    """Near distances have one each, far ones share them by their logarithm, each direction its own half."""
    half = _BUCKETS // 2
    exact = half // 2
    side, far = (half, distance) if distance > 0 else (0, -distance)
    if far < exact:
        return side + far
    # In fp32, as its reference has it: some distances are at the very edge of a bucket.
    part = np.log(np.float32(far) / np.float32(exact)) / np.float32(math.log(_FARTHEST / exact))
    return side + min(exact + int(part * np.float32(half - exact)), half - 1)


MPNET = Family(_shape, WORDS, ("mpnet.",), _mpnet, dense_head)
