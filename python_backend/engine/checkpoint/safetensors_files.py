"""Hugging Face's layout: `config.json` beside one or several safetensors files.

The format is read here and not by its own package, which copies every tensor and has no bfloat16 for numpy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.checkpoint.grouped import E4M3_VALUES, Matrix, Weights
from python_backend.engine.checkpoint.source import unusable
from python_backend.wire.errors import ErrorKind, InflightError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}
# What quantised checkpoints hold beside them; e4m3 as its codes.
_LEVELS = {"I8": "i1", "U8": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1", "I32": "<i4", "I64": "<i8"}


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise unusable(f"{path.parent} is not a checkpoint: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise unusable(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise unusable(f"{path} does not hold a JSON object")
    return content


@dataclass(frozen=True, slots=True)
class _Stored:
    file: NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _read_header(path: Path) -> dict[str, _Stored]:
    try:
        # Copy on write: nobody writes, but torch warns about arrays that it could not write to.
        file: NDArray[np.uint8] = np.memmap(path, mode="c")
        length = int.from_bytes(file[:_LENGTH_BYTES].tobytes(), "little")
        data = file[_LENGTH_BYTES + length :]
        header = json.loads(file[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes())
        tensors = {
            name: _Stored(data, entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise unusable(f"{path} cannot be read: {error}") from error
    if any(not 0 <= tensor.begin <= tensor.end <= len(data) for tensor in tensors.values()):
        raise unusable(f"{path} cannot be read: it has {len(file)} bytes, fewer than its header promises")
    return tensors


class SafetensorsFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.config = read_json(directory / "config.json")
        self._tensors = self._read_headers()

    @classmethod
    def of_file(cls, path: Path, config: dict[str, Any]) -> SafetensorsFiles:
        """One file of any name, whose configuration was read already."""
        files = cls.__new__(cls)
        files._directory, files.config = path.parent, config
        files._tensors = _read_header(path)
        return files

    def names(self) -> Iterable[str]:
        return self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def stored_bytes(self, name: str) -> int:
        stored = self._tensors[name]
        return stored.end - stored.begin

    def read(self, name: str) -> Weights:
        dtype = self._tensors[name].dtype
        if dtype == "F8_E4M3":
            numbers: Weights = E4M3_VALUES[self.array(name)]
            return numbers
        if dtype not in _DTYPES:
            raise InflightError(
                ErrorKind.UNSUPPORTED,
                f"tensor {name} of {self._directory} is {dtype}; "
                f"this engine reads {', '.join((*_DTYPES, 'F8_E4M3'))}",
            )
        values = self.array(name)
        if dtype == "BF16":  # the upper half of an fp32
            widened: Weights = (values.astype(np.uint32) << 16).view(np.float32)
            return widened
        return np.require(values, np.float32, "A")

    def is_grouped(self, name: str) -> bool:
        return False

    def matrix(self, name: str) -> Matrix:
        return self.read(name)

    def array(self, name: str) -> NDArray[Any]:
        """The numbers as they are stored, mapped; those of formats that numpy lacks as their bits."""
        stored = self._tensors[name]
        kind = {**_DTYPES, **_LEVELS}.get(stored.dtype)
        if kind is None:
            raise InflightError(
                ErrorKind.UNSUPPORTED,
                f"tensor {name} of {self._directory} is {stored.dtype}, which is not supported",
            )
        dtype = np.dtype(kind)
        if stored.end - stored.begin != math.prod(stored.shape) * dtype.itemsize:
            raise unusable(f"tensor {name} of {self._directory} has too few or too many bytes for its shape")
        return stored.file[stored.begin : stored.end].view(dtype).reshape(stored.shape)

    def _read_headers(self) -> dict[str, _Stored]:
        """What the index says is where, or all that the single file has."""
        if not (self._directory / _INDEX).exists():
            if not (self._directory / _SINGLE).exists():
                raise unusable(f"{self._directory} has neither {_SINGLE} nor {_INDEX}")
            return _read_header(self._directory / _SINGLE)
        weight_map = read_json(self._directory / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise unusable(f"{self._directory / _INDEX} has no weight_map")
        headers = {file: _read_header(self._directory / file) for file in sorted(set(weight_map.values()))}
        for name, file in weight_map.items():
            if name not in headers[file]:
                raise unusable(f"{file} of {self._directory} lacks tensor {name}")
        return {name: headers[file][name] for name, file in weight_map.items()}
