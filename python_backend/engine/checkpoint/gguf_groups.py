"""The kinds of GGUF whose blocks are levels in groups: kept quantised, where others are written out.

Each function takes blocks as (rows, blocks of a row, bytes) and gives levels (rows, inputs), and scales and
offsets (rows, groups).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from python_backend.engine.checkpoint.grouped import Grouped, Numbers, Weights

Octets = NDArray[np.uint8]
_Parts = tuple[NDArray[Any], Weights, "Weights | None"]


def _halfs(octets: Octets) -> Weights:
    """The half-precision number in every two bytes."""
    values: Weights = np.ascontiguousarray(octets).view(np.float16).astype(np.float32)
    return values


def _nibbles(octets: Octets) -> Octets:
    """All low halves of each 16 (or 32) bytes, then the high ones."""
    return np.concatenate((octets & 15, octets >> 4), axis=-1)


def _flat(levels: NDArray[Any]) -> NDArray[Any]:
    return levels.reshape(len(levels), -1)


def _q4_0(blocks: Octets) -> _Parts:
    levels = (_nibbles(blocks[..., 2:]) - np.uint8(8)).view(np.int8)
    return _flat(levels), _flat(_halfs(blocks[..., :2])), None


def _q4_1(blocks: Octets) -> _Parts:
    scales, least = _flat(_halfs(blocks[..., :2])), _flat(_halfs(blocks[..., 2:4]))
    levels = (_nibbles(blocks[..., 4:]) - np.uint8(8)).view(np.int8)
    return _flat(levels), scales, least + 8 * scales


def _q8_0(blocks: Octets) -> _Parts:
    return _flat(np.ascontiguousarray(blocks[..., 2:]).view(np.int8)), _flat(_halfs(blocks[..., :2])), None


def _q4_k(blocks: Octets) -> _Parts:
    """256 inputs: two halfs, eight scales and eight minima of six bits in twelve bytes, and the levels."""
    low, middle, high = (blocks[..., 4 + 4 * i : 8 + 4 * i] for i in range(3))
    sizes = np.concatenate((low & 63, (high & 15) | ((low >> 2) & 48)), axis=-1)
    least = np.concatenate((middle & 63, (high >> 4) | ((middle >> 2) & 48)), axis=-1)
    scales = _flat(_halfs(blocks[..., :2]) * sizes)
    octets = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)
    levels = (_nibbles(octets) - np.uint8(8)).view(np.int8)
    return _flat(levels), scales, 8 * scales - _flat(_halfs(blocks[..., 2:4]) * least)


def _q6_k(blocks: Octets) -> _Parts:
    """256 inputs in sixteen groups: low nibbles, the two bits above them, scales of eight bits, a half."""
    low = _nibbles(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64))
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    above = (blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> shifts) & 3
    levels = (low | (above.reshape(low.shape) << 4)).view(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8) * _halfs(blocks[..., 208:])
    return _flat(levels), _flat(scales), None


_KINDS: dict[GGMLQuantizationType, tuple[Numbers, Callable[[Octets], _Parts]]] = {
    GGMLQuantizationType.Q4_0: (Numbers.INT4, _q4_0),
    GGMLQuantizationType.Q4_1: (Numbers.INT4, _q4_1),
    GGMLQuantizationType.Q4_K: (Numbers.INT4, _q4_k),
    GGMLQuantizationType.Q6_K: (Numbers.INT8, _q6_k),
    GGMLQuantizationType.Q8_0: (Numbers.INT8, _q8_0),
}
GROUPED_KINDS = tuple(_KINDS)


def grouped(stored: Octets, kind: GGMLQuantizationType) -> Grouped:
    """`stored` is (rows, bytes of a row)."""
    numbers, read = _KINDS[kind]
    levels, scales, offsets = read(stored.reshape(len(stored), -1, GGML_QUANT_SIZES[kind][1]))
    return Grouped(numbers, levels, scales.astype(np.float32), offsets)
