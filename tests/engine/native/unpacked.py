"""The packed layouts read back in plain numpy, by what the kernel's documentation says of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.native.microkernel import CHANNELS, GROUP, Format
from python_backend.engine.native.weight_layouts import Packed, whole

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Unpacked:
    """`matrix` with its padding; `steps` (outputs, groups) is how far apart two levels are."""

    matrix: Floats
    steps: Floats


def unpack(packed: Packed, kind: Format, outputs: int, inputs: int) -> Unpacked:
    tiles, groups = whole(outputs, CHANNELS) // CHANNELS, whole(inputs, GROUP) // GROUP
    assert packed.weights.size == tiles * groups * kind.bytes_per_group
    assert packed.scales.size == tiles * groups * kind.scales_per_group
    matrix = np.zeros((tiles * CHANNELS, groups * GROUP), np.float32)
    steps = np.zeros((tiles * CHANNELS, groups), np.float32)
    weights = packed.weights.reshape(tiles, groups, kind.bytes_per_group)
    scales = packed.scales.view(np.float16).astype(np.float32).reshape(tiles, groups, -1)
    for tile in range(tiles):
        rows = slice(tile * CHANNELS, (tile + 1) * CHANNELS)
        for group in range(groups):
            columns = slice(group * GROUP, (group + 1) * GROUP)
            scale = scales[tile, group]
            matrix[rows, columns], steps[rows, group] = _unpack_group(weights[tile, group], scale, kind)
    return Unpacked(matrix, steps)


def _unpack_group(weights: NDArray[np.uint8], scale: Floats, kind: Format) -> tuple[Floats, Floats]:
    """(8 channels, 32 inputs), and the 8 distances of levels."""
    if kind is Format.FP32:
        return weights.view(np.float32).reshape(GROUP, CHANNELS).T, np.zeros(CHANNELS, np.float32)
    if kind is Format.INT8:
        levels = _in_channels(weights.view(np.int8))
        return levels * scale[:, None], scale
    pairs = weights.reshape(GROUP // 8, 2, 16)
    quads = np.stack([pairs & 15, pairs >> 4], axis=1).astype(np.int8)
    levels = _in_channels(np.where(quads > 7, quads - 16, quads))
    steps = scale[:CHANNELS]
    return levels * steps[:, None] + scale[CHANNELS:, None], steps


def _in_channels(levels: NDArray[np.int8]) -> Floats:
    """From (8 quads of inputs, 2 halves of the tile, 4 channels, 4 inputs)."""
    ordered = levels.reshape(GROUP // 4, 2, 4, 4).transpose(1, 2, 0, 3)
    return ordered.reshape(CHANNELS, GROUP).astype(np.float32)
