"""What an encoder consists of, whatever family it is of: shapes, weights, and what is done with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """`positions`: tokens of the longest text; `padding` is the id that positions skip, where any does."""

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

    @property
    def places(self) -> int:
        """Rows of a table of positions."""
        return self.positions + (0 if self.padding is None else self.padding + 1)

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Floats  # inputs x outputs
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    weight: Floats
    bias: Floats | None
    epsilon: float


@dataclass(frozen=True, slots=True)
class Layer:
    """`up` of a gated layer gives what is activated and then what that is multiplied with.

    Tokens that are more than `window` apart do not see each other, where there is one.
    """

    query_key_value: Linear
    attention_output: Linear
    attention_norm: Norm | None
    up: Linear
    down: Linear
    output_norm: Norm
    is_gated: bool = False
    rope_theta: float | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Makes one number of a pooled text: a layer with an activation, perhaps a norm, and a sum at the end."""

    dense: Linear
    activation: str
    norm: Norm | None
    output: Linear


@dataclass(frozen=True, slots=True)
class Encoder:
    """Norms follow what they normalize, or precede it (`is_pre_norm`: then the last one is `final_norm`).

    `relative` has a row of values, one for each head, for each distance from -(positions-1) upwards.
    """

    shape: Shape
    words: Floats
    positions: Floats | None
    types: Floats | None
    embedding_norm: Norm
    layers: tuple[Layer, ...]
    is_pre_norm: bool = False
    final_norm: Norm | None = None
    relative: Floats | None = None
