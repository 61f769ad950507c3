"""What every family of encoders needs: keys of a config that are checked, tensors that are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from python_backend.embeddings.layers import Encoder, Floats, Head, Linear, Norm, Rope, Shape
from python_backend.engine.checkpoint import TensorStore, unusable

Values = Mapping[str, Any]


class Reader:
    """The tensors of one checkpoint by their names in the encoder, which may be a part of a larger model."""

    def __init__(self, store: TensorStore, shape: Shape, parent: str) -> None:
        self._store = store
        self._parent = parent
        self.shape = shape

    @property
    def config(self) -> Values:
        return self._store.config

    def beside(self) -> Reader:
        """By their names in the model that the encoder is a part of."""
        return Reader(self._store, self.shape, "")

    def has(self, name: str) -> bool:
        return f"{self._parent}{name}" in self._store

    def tensor(self, name: str, *shape: int) -> Floats:
        return self._store.tensor(f"{self._parent}{name}", *shape)

    def norm(self, name: str, has_bias: bool = True) -> Norm:
        bias = self.tensor(f"{name}.bias", self.shape.hidden) if has_bias else None
        return Norm(self.tensor(f"{name}.weight", self.shape.hidden), bias, self.shape.epsilon)

    def linear(self, name: str, inputs: int, outputs: int, has_bias: bool = True) -> Linear:
        bias = self.tensor(f"{name}.bias", outputs) if has_bias else None
        return Linear(self.tensor(f"{name}.weight", outputs, inputs).T, bias)

    def joined(self, names: Sequence[str], inputs: int, outputs: int, has_bias: bool = True) -> Linear:
        """Several products of one input as one."""
        parts = [self.linear(name, inputs, outputs, has_bias) for name in names]
        biases = [part.bias for part in parts if part.bias is not None]
        weight = np.concatenate([part.weight for part in parts], axis=1)
        return Linear(weight, np.concatenate(biases) if biases else None)

    def rope(self, values: Values, default_theta: float) -> Rope:
        """Of one entry of `rope_parameters`."""
        require(values, rope_type="default")
        return Rope.of(float(values.get("rope_theta", default_theta)), self.shape.head_size)


@dataclass(frozen=True, slots=True)
class Family:
    """`words` is the tensor by which an encoder is found, alone or within one of `parents`."""

    shape: Callable[[Values], Shape]
    words: str
    parents: tuple[str, ...]
    encoder: Callable[[Reader], Encoder]
    head: Callable[[Reader], Head]

    def reader(self, store: TensorStore) -> Reader:
        for parent in ("", *self.parents):
            if f"{parent}{self.words}" in store:
                return Reader(store, self.shape(store.config), parent)
        raise unusable(f"{store.path} lacks tensor {self.words}")


def require(values: Values, **allowed: Any) -> None:
    """A key that is there has one of the values that are computed here, or the model is refused."""
    for key, only in allowed.items():
        choices = only if isinstance(only, tuple) else (only,)
        if values.get(key, choices[0]) not in choices:
            shown = " or ".join(map(repr, choices))
            raise unusable(f"config.json: {key} is {values[key]!r}; supported: {shown}")


def usual_shape(values: Values, family: str, positions: int, **more: Any) -> Shape:
    """By the names that nearly all configs have."""
    return Shape(
        family,
        int(values["num_hidden_layers"]),
        int(values["hidden_size"]),
        int(values["num_attention_heads"]),
        int(values["intermediate_size"]),
        int(values["vocab_size"]),
        positions,
        **more,
    )
