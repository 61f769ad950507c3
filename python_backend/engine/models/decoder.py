"""A decoder-only transformer as data: its shape, and its weights in one naming whatever the family.

Each family turns a checkpoint into a `DecoderWeights`; what computes with it (torch, or the CPU kernels in
`native`) knows this file and no family.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from python_backend.engine.checkpoint import Grouped, Matrix, Numbers, Weights
from python_backend.engine.checkpoint.grouped import dense, of_rows

__all__ = [
    "Activation",
    "DecoderShape",
    "DecoderWeights",
    "ExpertShape",
    "ExpertWeights",
    "Grouped",
    "LayerWeights",
    "Matrix",
    "Numbers",
    "Rope",
    "Weights",
    "dense",
    "of_rows",
]


class Activation(str, Enum):
    """What becomes of a gate g and the up u beside it: activate(g) · u, but for the last.

    That is, with both clamped to `activation_limit`, g · sigmoid(1.702 g) · (u + 1): gpt-oss's.
    """

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    CLAMPED_SWIGLU = "clamped_swiglu"


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A mixture of experts: each row goes through `per_token` of `count` of them.

    The router's softmax is over all experts; with `renormalizes` the shares of the chosen are made to sum up
    to 1. Behind them are `shared` more, which every row goes through: the parts of one that is as many times
    as wide. All of those have the share that the sigmoid of the router's last score is.
    """

    count: int
    per_token: int
    intermediate: int
    renormalizes: bool
    shared: int = 0

    @property
    def total(self) -> int:
        return self.count + self.shared

    @property
    def scores(self) -> int:
        """How many the router gives."""
        return self.count + bool(self.shared)

    @property
    def passes(self) -> int:
        """How many experts a row goes through."""
        return self.per_token + self.shared


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
    activation_limit: float = 7.0
    experts: ExpertShape | None = None

    def even_context(self, attention_speed: float) -> int | None:
        """How many tokens a row looks back at when that takes as long as its products; None: it never does.

        Attention multiplies at so many times the speed of products.
        """
        looks_back = sum(window is None for window in self.windows) * 2 * self.heads * self.head_dim
        if not looks_back:
            return None
        experts, heads = self.experts, 2 * self.heads + 2 * self.kv_heads
        wide = self.intermediate
        if experts is not None:
            wide = (experts.per_token + experts.shared) * experts.intermediate
        products = self.layers * self.hidden * (heads * self.head_dim + 3 * wide)
        return int(attention_speed * products / looks_back)


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """`router` (scores, hidden); `gate_up` (experts, 2 · intermediate, hidden), gates first; `down`
    (experts, hidden, intermediate). Biases have one dimension less."""

    router: Weights
    gate_up: Matrix
    down: Matrix
    router_bias: Weights | None = None
    gate_up_bias: Weights | None = None
    down_bias: Weights | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are (outputs, inputs), and quantised still where the checkpoint has them so.

    `qkv` holds queries, keys and values one after the other. The rows of every query and key head (and the
    entries of their bias and norms) are ordered so that the two dimensions that turn together are neighbours
    (`rope.pair_up`). `gate_up` holds all gates, then all ups. Norm weights are what the normed row is
    multiplied by: a family that stores weight - 1 adds the 1 at loading. `query_norm` and `key_norm` are as
    wide as a head, or as all of them where all are normed as one row. A head's entry of `sinks` is a score
    that no token has: it takes its share of attention, and brings nothing.
    """

    attention_norm: Weights | None
    qkv: Matrix
    attention_out: Matrix
    mlp_norm: Weights | None
    gate_up: Matrix | None
    down: Matrix | None
    qkv_bias: Weights | None = None
    attention_out_bias: Weights | None = None
    gate_up_bias: Weights | None = None
    down_bias: Weights | None = None
    query_norm: Weights | None = None
    key_norm: Weights | None = None
    # Norms on what attention and mlp give back, before it is added to the residual (Gemma).
    attention_out_norm: Weights | None = None
    mlp_out_norm: Weights | None = None
    sinks: Weights | None = None
    experts: ExpertWeights | None = None


class DecoderWeights(Protocol):
    """Weights, read from the checkpoint when asked for, so that one layer at a time is in memory."""

    @property
    def shape(self) -> DecoderShape: ...

    @property
    def quantized_bytes(self) -> int | None:
        """What they take where they are kept quantised, as they are stored; None where they are not."""

    def embeddings(self) -> Weights:
        """(vocabulary, hidden), without `embedding_scale`."""

    def layer(self, index: int) -> LayerWeights: ...

    def final_norm(self) -> Weights: ...

    def head(self) -> Weights | None:
        """(vocabulary, hidden), or None when the embeddings serve as head."""
