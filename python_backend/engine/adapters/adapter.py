"""A LoRA adapter as data: for each product of a layer that it adds to, two thin matrices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from python_backend.engine.models.decoder import DecoderShape, Weights


class Part(IntEnum):
    """What an adapter may add to, in the order in which a layer computes it."""

    QUERY = 0
    KEY = 1
    VALUE = 2
    ATTENTION_OUT = 3
    GATE = 4
    UP = 5
    DOWN = 6


class Pair(NamedTuple):
    """Adds `expand` · (`shrink` · x): (rank, inputs), then (outputs, rank) with the scale already in it.

    The rows of a query's or key's `expand` are in the order of `LayerWeights.qkv`.
    """

    shrink: Weights
    expand: Weights

    @property
    def rank(self) -> int:
        return len(self.shrink)


@dataclass(frozen=True, slots=True)
class Adapter:
    """`layers[i]` has what it adds to in layer i; `identity` differs wherever the weights might."""

    name: str
    rank: int
    layers: tuple[dict[Part, Pair], ...]
    identity: bytes


class AdapterMemory(Protocol):
    """Where the model that computes keeps adapters: so many places, each for one of up to `max_rank`."""

    @property
    def places(self) -> int: ...

    @property
    def max_rank(self) -> int: ...

    def put(self, place: int, adapter: Adapter) -> None:
        """Into a place that no sequence uses. Raises InflightError where there is no memory for it."""

    def clear(self, place: int) -> None:
        """Gives back the memory of what is there."""


def part_sizes(shape: DecoderShape) -> dict[Part, tuple[int, int]]:
    """Inputs and outputs of each product of a dense layer."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        Part.QUERY: (shape.hidden, queries),
        Part.KEY: (shape.hidden, keys),
        Part.VALUE: (shape.hidden, keys),
        Part.ATTENTION_OUT: (queries, shape.hidden),
        Part.GATE: (shape.hidden, shape.intermediate),
        Part.UP: (shape.hidden, shape.intermediate),
        Part.DOWN: (shape.intermediate, shape.hidden),
    }
