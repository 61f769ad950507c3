"""What an encoder, or a decoder without its vocabulary, consists of, whatever family it is of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """`positions`: tokens of the longest text; `padding` is the id that positions skip, where any does.

    Decoders have fewer heads of keys and values than of queries, and heads of any size.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocabulary: int
    positions: int
    epsilon: float
    activation: str = "gelu"
    padding: int | None = None
    types: int = 0
    own_kv_heads: int | None = None
    own_head_size: int | None = None

    @property
    def places(self) -> int:
        """Rows of a table of positions."""
        return self.positions + (0 if self.padding is None else self.padding + 1)

    @property
    def head_size(self) -> int:
        return self.own_head_size or self.hidden // self.heads

    @property
    def kv_heads(self) -> int:
        return self.own_kv_heads or self.heads


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Floats  # inputs x outputs
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """With `is_rms` a row is divided by the root of its mean square, and keeps its mean."""

    weight: Floats
    bias: Floats | None
    epsilon: float
    is_rms: bool = False


@dataclass(frozen=True, slots=True)
class Rope:
    """How fast each pair of a head turns, and the factor on sine and cosine.

    The two of a pair are neighbours (`is_paired`), or half a head apart.
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0
    is_paired: bool = False

    @classmethod
    def of(cls, theta: float, head_size: int) -> Rope:
        turns = 1.0 / theta ** (np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size))
        return cls(tuple(turns.astype(np.float32).tolist()))


@dataclass(frozen=True, slots=True)
class Layer:
    """`up` of a gated layer gives what is activated and then what that is multiplied with.

    Tokens that are more than `window` apart do not see each other, where there is one. Each head of queries
    and of keys may have a norm.
    """

    query_key_value: Linear
    attention_output: Linear
    attention_norm: Norm | None
    up: Linear
    down: Linear
    output_norm: Norm
    is_gated: bool = False
    rope: Rope | None = None
    window: int | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Makes one number of a pooled text: a sum, perhaps behind a layer with an activation and a norm."""

    output: Linear
    dense: Linear | None = None
    activation: str = ""
    norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Encoder:
    """Norms follow what they normalize, or precede it (`is_pre_norm`: then the last one is `final_norm`).

    `layers` may be gone through once: those of a large model are read one at a time. `relative` has a row of
    values, one for each head, for each distance from -(positions-1) upwards. With `is_causal` a token sees
    only those before it.
    """

    shape: Shape
    words: Floats
    positions: Floats | None
    types: Floats | None
    embedding_norm: Norm | None
    layers: Iterable[Layer]
    is_pre_norm: bool = False
    final_norm: Norm | None = None
    relative: Floats | None = None
    is_causal: bool = False
