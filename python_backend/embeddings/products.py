"""Products of matrices in an encoder's graph: in fp32, or of numbers of 8 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from python_backend.embeddings.graph import Graph
from python_backend.embeddings.layers import Floats, Linear
from python_backend.engine.host.processor import Instructions, cpu_instructions

_MOST_ROTATED = 64
_MIDDLE = np.array(128, np.uint8)
_LARGEST = 127
# Other processors may add products in pairs of 16 bits, which larger weights would overflow.
_LARGEST_IN_PAIRS = 63
ADD_IN_32_BITS = (Instructions.AVX512_VNNI, Instructions.AVX_VNNI, Instructions.DOT_PRODUCTS)
_SMALLEST = np.float32(1e-12)


class Products:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def add(self, states: str, linear: Linear) -> str:
        weight = self._graph.weight(linear.weight)
        if linear.bias is None:
            return self._graph.add("MatMul", states, weight)
        return self._graph.add("Gemm", states, weight, self._graph.weight(linear.bias))


class RoundedProducts(Products):
    """Each output has a scale for its weights and each token one for its state, whatever else is computed.

    Some values of a state are many times as large as all others, to which they would leave few of the 256
    levels. So a state is rotated first, some neighbours at a time, which shares out what is large; with
    weights that are rotated likewise the product is the same.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._largest = _LARGEST if cpu_instructions() in ADD_IN_32_BITS else _LARGEST_IN_PAIRS
        self._last_axis = graph.weight(np.array([1], np.int64))
        self._middles = ""
        self._rotations: dict[int, str] = {}

    def add(self, states: str, linear: Linear) -> str:
        graph, (inputs, outputs) = self._graph, linear.weight.shape
        rotation = _rotation(min(_MOST_ROTATED, inputs & -inputs))
        rotated = rotation @ linear.weight.reshape(-1, len(rotation), outputs)
        weights, weight_scales = _rounded(rotated.reshape(inputs, outputs), self._largest)
        levels, scales = self._levels(self._rotated(states, rotation, inputs))
        product = graph.fused(
            "MatMulIntegerToFloat",
            levels,
            graph.weight(weights),
            graph.weight(np.ones((), np.float32)),
            graph.weight(weight_scales),
            graph.weight(_MIDDLE),
        )
        product = graph.add("Mul", product, graph.add("Unsqueeze", scales, self._last_axis))
        return product if linear.bias is None else graph.add("Add", product, graph.weight(linear.bias))

    def _rotated(self, states: str, rotation: Floats, inputs: int) -> str:
        graph = self._graph
        size = len(rotation)
        if size not in self._rotations:
            self._rotations[size] = graph.weight(rotation)
        neighbours, whole = (graph.weight(np.array([-1, width])) for width in (size, inputs))
        rotated = graph.add("MatMul", graph.add("Reshape", states, neighbours), self._rotations[size])
        return graph.add("Reshape", rotated, whole)

    def _levels(self, states: str) -> tuple[str, str]:
        graph = self._graph
        if not self._middles:
            tokens = graph.add("Shape", states, start=0, end=1)
            self._middles = graph.add("Expand", graph.weight(_MIDDLE), tokens)
        largest = graph.add("ReduceMax", graph.add("Abs", states), self._last_axis, keepdims=0)
        largest = graph.add("Max", largest, graph.weight(_SMALLEST.reshape(())))
        scales = graph.add("Div", largest, graph.weight(np.array(_LARGEST, np.float32)))
        return graph.add("QuantizeLinear", states, scales, self._middles, axis=0), scales


def _rotation(size: int) -> Floats:
    """Hadamard's matrix, for a power of two: its rows have length 1, and it is its own inverse."""
    signs = np.ones((1, 1), np.float32)
    while len(signs) < size:
        signs = np.block([[signs, signs], [signs, -signs]])
    rotation: Floats = signs / np.sqrt(np.float32(size))
    return rotation


def _rounded(weights: Floats, largest: int) -> tuple[NDArray[np.int8], Floats]:
    scales = np.maximum(np.abs(weights).max(axis=0), _SMALLEST) / np.float32(largest)
    return np.rint(weights / scales).astype(np.int8), scales
