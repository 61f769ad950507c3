"""A decoder-only transformer as data: its shape, and its weights in one naming whatever the family.

Each family turns a checkpoint into a `DecoderWeights`; what computes with it (torch, or the CPU kernels in
`native`) knows this file and no family.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]


class Activation(str, Enum):
    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A mixture of experts: each row goes through `per_token` of `count` of them.

    The router's softmax is over all experts; with `renormalizes` the shares of the chosen are made to sum up
    to 1.
    """

    count: int
    per_token: int
    intermediate: int
    renormalizes: bool


@dataclass(frozen=True, slots=True)
class Rope:
    """How fast each pair of a head turns, and the factor on both its sine and its cosine.

    `inverse_frequencies` has rotary_dim / 2 entries; a head's dimensions beyond rotary_dim do not turn.
    """

    inverse_frequencies: Weights
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """`windows[i]` is how many tokens layer i looks back at, itself included; None: all of them.

    `rope_of_layer[i]` indexes `ropes`. `query_scale` multiplies every score; a softcap c turns a score x into
    c · tanh(x / c).
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    norm_epsilon: float
    activation: Activation
    query_scale: float
    ropes: tuple[Rope, ...]
    rope_of_layer: tuple[int, ...]
    windows: tuple[int | None, ...]
    embedding_scale: float = 1.0
    weighs_in_fp32: bool = False  # normed rows are rounded after they are weighed, not before
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    experts: ExpertShape | None = None


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """`router` (experts, hidden); `gate_up` (experts, 2 · intermediate, hidden), gates first; `down`
    (experts, hidden, intermediate)."""

    router: Weights
    gate_up: Weights
    down: Weights


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are (outputs, inputs).

    `qkv` holds queries, keys and values one after the other. The rows of every query and key head (and the
    entries of their bias and norms) are ordered so that the two dimensions that turn together are neighbours
    (`rope.pair_up`). `gate_up` holds all gates, then all ups. Norm weights are what the normed row is
    multiplied by: a family that stores weight - 1 adds the 1 at loading.
    """

    attention_norm: Weights
    qkv: Weights
    attention_out: Weights
    mlp_norm: Weights
    gate_up: Weights | None
    down: Weights | None
    qkv_bias: Weights | None = None
    attention_out_bias: Weights | None = None
    gate_up_bias: Weights | None = None
    down_bias: Weights | None = None
    query_norm: Weights | None = None
    key_norm: Weights | None = None
    # Norms on what attention and mlp give back, before it is added to the residual (Gemma).
    attention_out_norm: Weights | None = None
    mlp_out_norm: Weights | None = None
    experts: ExpertWeights | None = None


class DecoderWeights(Protocol):
    """Weights in fp32, read from the checkpoint when asked for, so that one layer at a time is in memory."""

    @property
    def shape(self) -> DecoderShape: ...

    def embeddings(self) -> Weights:
        """(vocabulary, hidden), without `embedding_scale`."""

    def layer(self, index: int) -> LayerWeights: ...

    def final_norm(self) -> Weights: ...

    def head(self) -> Weights | None:
        """(vocabulary, hidden), or None when the embeddings serve as head."""
