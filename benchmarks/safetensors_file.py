"""Weights as a safetensors file, written by hand: a GPU's host need not have the library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Fill = Callable[[str, tuple[int, ...]], NDArray[np.float32]]


def random_fill(deviation: float = 0.05) -> Fill:
    """The same numbers for the same order of calls."""
    chance = np.random.default_rng(1)
    return lambda name, shape: chance.standard_normal(shape, np.float32) * np.float32(deviation)


def write_safetensors(path: Path, shapes: Mapping[str, tuple[int, ...]], fill: Fill) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    written = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        for name, shape in shapes.items():
            file.write(fill(name, shape).astype("<f4").tobytes())
