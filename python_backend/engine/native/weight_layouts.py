"""Weights in the layouts the microkernel reads: tiles of eight output channels, groups of 32 inputs.

A tile lies in memory as the kernel walks it: group after group, and in a group four inputs of four channels
side by side, then the same four inputs of the next four channels. Outputs are padded to whole tiles and
inputs to whole groups with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.models.decoder import Grouped, Matrix, Numbers, dense
from python_backend.engine.native.microkernel import CHANNELS, GROUP, LARGEST_HALF, Format

Floats = NDArray[np.float32]


def whole(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass(frozen=True, slots=True)
class Packed:
    """One matrix: `weights` are its bytes, `scales` the bits of its half-precision scales."""

    weights: NDArray[np.uint8]
    scales: NDArray[np.uint16]


def pack(matrix: Matrix, kind: Format) -> Packed:
    """A quantised matrix keeps its levels where the format has room for them; else it is rounded anew."""
    kept = _kept_levels(matrix, kind) if isinstance(matrix, Grouped) else None
    return _pack_floats(dense(matrix), kind) if kept is None else kept


def _kept_levels(matrix: Grouped, kind: Format) -> Packed | None:
    fits = matrix.group % GROUP == 0 and float(np.abs(matrix.scales).max(initial=0)) <= LARGEST_HALF
    if not fits or matrix.numbers is Numbers.E4M3 or not np.isfinite(matrix.scales).all():
        return None
    if kind is Format.INT4 and matrix.numbers is Numbers.INT4:
        grouped = matrix.in_groups_of(GROUP)
        offsets = np.zeros_like(grouped.scales) if grouped.offsets is None else grouped.offsets
        sizes = [_whole_tiles(grouped.scales), _whole_tiles(offsets)]
        return Packed(_tiles_of_nibbles(_by_group(grouped.levels)), _tiles_of_scales(sizes))
    whole_levels = _without_offsets(matrix) if kind is Format.INT8 else None
    if whole_levels is None:
        return None
    scales = _whole_tiles(matrix.in_groups_of(GROUP).scales)
    return Packed(_tiles_of_bytes(_by_group(whole_levels)), _tiles_of_scales([scales]))


def _without_offsets(matrix: Grouped) -> NDArray[np.int8] | None:
    """Levels of a byte whose scale is all that they need: an offset of whole steps is part of the level."""
    if matrix.offsets is None:
        return matrix.levels
    steps = np.rint(matrix.offsets / _divisor(matrix.scales))
    if not np.allclose(steps * matrix.scales, matrix.offsets, rtol=1e-5, atol=0) or np.abs(steps).max() > 100:
        return None
    moved = matrix.levels.astype(np.int16) + steps.astype(np.int16).repeat(matrix.group, 1)
    return moved.astype(np.int8) if np.abs(moved).max() <= 127 else None


def _whole_tiles(rows: NDArray[Any]) -> NDArray[Any]:
    padded = np.zeros((whole(len(rows), CHANNELS), rows.shape[1]), rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _by_group(levels: NDArray[np.int8]) -> NDArray[np.int8]:
    padded = _whole_tiles(levels)
    return padded.reshape(len(padded), -1, GROUP)


def _pack_floats(matrix: Floats, kind: Format) -> Packed:
    outputs, inputs = matrix.shape
    padded = np.zeros((whole(outputs, CHANNELS), whole(inputs, GROUP)), np.float32)
    padded[:outputs, :inputs] = matrix
    if kind is Format.FP32:
        tiles = padded.reshape(-1, CHANNELS, padded.shape[1]).transpose(0, 2, 1)
        return Packed(np.ascontiguousarray(tiles).view(np.uint8).reshape(-1), np.zeros(0, np.uint16))
    groups = padded.reshape(padded.shape[0], -1, GROUP)
    broken = ~np.isfinite(groups).all(axis=2)
    groups = np.where(broken[..., None], np.float32(0), groups)
    if kind is Format.INT8:
        scales = _half_or_more(np.abs(groups).max(axis=2) / 127)
        levels = np.rint(groups / _divisor(scales)[..., None]).clip(-127, 127).astype(np.int8)
        return Packed(_tiles_of_bytes(levels), _tiles_of_scales([_marked(scales, broken)]))
    low, high = groups.min(axis=2), groups.max(axis=2)
    steps = _half_or_more((high - low) / 15)
    # Levels run from -8 to 7: the offset is what level 0 stands for, as the kernel will read it.
    offsets = _half(low + 8 * steps)
    levels = np.rint((groups - offsets[..., None]) / _divisor(steps)[..., None]).clip(-8, 7).astype(np.int8)
    return Packed(_tiles_of_nibbles(levels), _tiles_of_scales([_marked(steps, broken), offsets]))


def _marked(scales: Floats, broken: NDArray[np.bool_]) -> Floats:
    """A group with a weight that is not a number must not come out as one."""
    marked: Floats = np.where(broken, np.float32(np.nan), scales)
    return marked


def _half(values: Floats) -> Floats:
    """What is left of them in half precision, so that levels are counted in the steps really taken."""
    halved: Floats = values.astype(np.float16).astype(np.float32)
    return halved


def _half_or_more(values: Floats) -> Floats:
    """Rounded up, so that the largest weight of a group is still within reach of its steps."""
    halved = values.astype(np.float16)
    next_one = np.nextafter(halved, np.float16(np.inf))
    raised: Floats = np.where(halved.astype(np.float32) < values, next_one, halved).astype(np.float32)
    return raised


def _divisor(scales: Floats) -> Floats:
    divisor: Floats = np.where(scales > 0, scales, 1).astype(np.float32)
    return divisor


def _in_kernel_order(levels: NDArray[np.int8]) -> NDArray[np.int8]:
    """(channels, groups, 32) as (tiles, quads of inputs, halves of the tile, 4 channels, 4 inputs)."""
    channels, groups, _ = levels.shape
    split = levels.reshape(channels // CHANNELS, 2, 4, groups * GROUP // 4, 4)
    return np.ascontiguousarray(split.transpose(0, 3, 1, 2, 4))


def _tiles_of_bytes(levels: NDArray[np.int8]) -> NDArray[np.uint8]:
    return _in_kernel_order(levels).view(np.uint8).reshape(-1)


def _tiles_of_nibbles(levels: NDArray[np.int8]) -> NDArray[np.uint8]:
    ordered = _in_kernel_order(levels).view(np.uint8)
    return np.ascontiguousarray((ordered[:, 0::2] & 15) | (ordered[:, 1::2] << 4)).reshape(-1)


def _tiles_of_scales(parts: list[Floats]) -> NDArray[np.uint16]:
    """(channels, groups) each, as (tiles, groups, parts, 8 channels)."""
    stacked = np.stack([part.reshape(-1, CHANNELS, part.shape[1]) for part in parts])
    halves = np.ascontiguousarray(stacked.transpose(1, 3, 0, 2)).astype(np.float16)
    return halves.view(np.uint16).reshape(-1)
