"""Checkpoints in Hugging Face's layout: `config.json` beside one or several safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from python_backend.wire.errors import ErrorKind, InflightError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def unusable(message: str) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, message)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise unusable(f"{path.parent} is not a checkpoint: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise unusable(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise unusable(f"{path} does not hold a JSON object")
    return content


class Checkpoint:
    """The configuration and the tensors of one model. Files are mapped, and tensors read when asked for."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.config = _read_json(self.directory / "config.json")
        self._files: dict[str, Any] = {}
        self._file_of = self._locate_tensors()

    @property
    def architectures(self) -> list[str]:
        return list(self.config.get("architectures") or [])

    @property
    def weight_bytes(self) -> int:
        """Size of all weights in fp32, counted from the files' headers."""
        return sum(4 * torch.Size(self._slice(name).get_shape()).numel() for name in self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor in fp32; refuses one that is missing or not of this shape."""
        if name not in self._file_of:
            raise unusable(f"{self.directory} lacks tensor {name}")
        found = tuple(self._slice(name).get_shape())
        if found != shape:
            raise unusable(f"tensor {name} of {self.directory} is {found}; config.json implies {shape}")
        tensor: torch.Tensor = self._open(self._file_of[name]).get_tensor(name)
        return tensor.to(torch.float32)

    def _locate_tensors(self) -> dict[str, str]:
        """Which file holds which tensor: what the index says, or all that the single file has."""
        if (self.directory / _INDEX).exists():
            weight_map = _read_json(self.directory / _INDEX).get("weight_map")
            if not isinstance(weight_map, dict):
                raise unusable(f"{self.directory / _INDEX} has no weight_map")
            return weight_map
        if not (self.directory / _SINGLE).exists():
            raise unusable(f"{self.directory} has neither {_SINGLE} nor {_INDEX}")
        return dict.fromkeys(self._open(_SINGLE).keys(), _SINGLE)

    def _slice(self, name: str) -> Any:
        file = self._open(self._file_of[name])
        try:
            return file.get_slice(name)
        except SafetensorError as error:
            raise unusable(f"{self._file_of[name]} of {self.directory} lacks tensor {name}") from error

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            path = self.directory / file_name
            try:
                self._files[file_name] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise unusable(f"{path} cannot be read: {error}") from error
        return self._files[file_name]
