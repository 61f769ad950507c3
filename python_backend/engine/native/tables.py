"""What a step is told and what it works with, as tuples of arrays: the form in which numba takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Dimensions(NamedTuple):
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int  # pairs of a head that turn
    vocabulary: int
    slots: int
    kv_bytes: int  # of a key's or value's number: 4, or 2 in half precision
    format: int
    head_format: int
    wide_from: int  # rows from which on sixteen are multiplied at a time
    activation: int
    activation_limit: np.float32
    epsilon: np.float32
    query_scale: np.float32
    embedding_scale: np.float32
    attention_softcap: np.float32  # 0: none
    logits_softcap: np.float32
    experts_per_row: int  # 0: no layer has experts
    experts_renormalize: bool
    experts_shared: int  # of those, how many every row goes through


class AttentionArrays(NamedTuple):
    """Weights of attention, layer by layer; what a model lacks has no columns."""

    qkv: Any
    qkv_scales: Any
    qkv_bias: Any
    query_norm: Any
    key_norm: Any
    attention_out: Any
    attention_out_scales: Any
    attention_out_bias: Any
    sinks: Any
    windows: Any
    rope_of_layer: Any


class Arrays(NamedTuple):
    """Every weight of the model.

    `mlp_of_layer` says which of the dense ones (`gate_up`, `down`) a layer has, or, as -1 - number, which of
    those with experts.
    """

    attention: AttentionArrays
    attention_norm: Any
    attention_out_norm: Any
    mlp_norm: Any
    gate_up: Any
    gate_up_scales: Any
    gate_up_bias: Any
    down: Any
    down_scales: Any
    down_bias: Any
    mlp_out_norm: Any
    final_norm: Any
    head: Any
    head_scales: Any
    embeddings: Any
    embeddings_scales: Any
    mlp_of_layer: Any
    router: Any
    router_bias: Any
    expert_gate_up: Any  # (layers that have experts, experts, bytes)
    expert_gate_up_scales: Any
    expert_gate_up_bias: Any
    expert_down: Any
    expert_down_scales: Any
    expert_down_bias: Any


ARRAY_NAMES = (*AttentionArrays._fields, *Arrays._fields[1:])


def arrays_of(named: Mapping[str, Any]) -> Arrays:
    attention = AttentionArrays(**{name: named[name] for name in AttentionArrays._fields})
    return Arrays(attention, **{name: named[name] for name in Arrays._fields[1:]})


class Matrix(NamedTuple):
    """One packed matrix; `bias` may have no entries."""

    weights: Any
    scales: Any
    bias: Any


class Batch(NamedTuple):
    """What this step computes: flat rows, and the blocks their sequences have."""

    token_ids: Any
    positions: Any
    tables_at: Any  # (tables, rows): where each of the row's block tables begins in `tables`
    tables: Any
    cosines: Any  # (ropes, rows, rotary)
    sines: Any
    wanted: Any  # rows whose logits are asked for
    first_rows: Any  # neighbouring rows of one sequence attend together: the first of them,
    row_counts: Any  # and how many they are


class AdapterTables(NamedTuple):
    """Adapters by their places. What a part has in a layer begins `starts` behind the layer's bytes."""

    pool: Any  # (places, bytes)
    ranks: Any  # (places, layers, parts); 0: nothing is added there
    starts: Any  # (parts, 3): the first matrix, its scales, and the second
    widths: Any  # (parts): outputs of the second
    worths: Any  # (places, layers, parts, ranks): what a row of the second is multiplied by
    layer_bytes: int
    format: int


class Adapted(NamedTuple):
    """Which adapter each row of a step has, and the rows on their way through them."""

    tables: AdapterTables
    of_row: Any  # the place of its adapter, -1: none; empty where no row has one
    rows: Any  # (rows, parts that have one input, and room for part of a vector; rank)
    nothing: Any  # eight zeros


class Cache(NamedTuple):
    """Keys (places, blocks, heads, dimensions, slots), values (places, blocks, heads, slots, dimensions).

    The last axis of each is padded to whole vectors, and in bytes: `Dimensions.kv_bytes` make a number. A
    layer has a place in the blocks of one of the tables.
    """

    keys: Any
    values: Any
    place_of_layer: Any
    table_of_layer: Any


class Inputs(NamedTuple):
    """Rows that a product takes in, padded to whole groups: as floats, and in bytes.

    A byte of a group is worth `worths`, and the group's bytes sum up to `totals`.
    """

    floats: Any
    levels: Any
    worths: Any
    totals: Any


class ExpertScratch(NamedTuple):
    """Rows on their way through the experts: those of the first expert first, and so on."""

    scores: Any  # (rows, experts)
    chosen: Any  # (rows, experts a row goes to)
    shares: Any
    places: Any  # where the row is among the gathered ones
    first_places: Any  # (experts + 1)
    filled: Any  # (experts) places given out so far
    gathered: Inputs
    inner: Inputs
    out: Any


class Scratch(NamedTuple):
    """What flows between the stages."""

    hidden: Any
    normed: Inputs
    qkv: Any
    attended: Inputs
    inner: Inputs
    delta: Any
    queries: Any  # (threads, queries that attend together, dimensions of a head)
    scores: Any  # (threads, the same, tokens)
    sums: Any  # (threads, the same, dimensions of a head)
    wide: Any  # (threads, a head's keys or values of one block)
    tiles: Any  # (threads, a tile's worth, and the gates and ups of a few rows)


class Told(NamedTuple):
    """All that a step is told, after the number of the thread that runs it."""

    threads: int
    attention: int  # where its compiled function lies
    dimensions: Dimensions
    arrays: Arrays
    batch: Batch
    scratch: Scratch
    experts: ExpertScratch | None  # None: the model has none, and nothing for them is compiled
    adapted: Adapted | None
    cache: Cache
    logits: Any
    counters: Any
