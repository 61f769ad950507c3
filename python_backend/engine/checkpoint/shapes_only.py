"""A model of which only the configuration is read, for random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from python_backend.engine.checkpoint.grouped import Weights
from python_backend.engine.checkpoint.safetensors_files import read_json
from python_backend.wire.parameters import refusal


class ShapesOnly:
    """A checkpoint of a config.json alone: its matrices have shapes and no content."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory)
        if self.path.is_file():
            allowed = "checkpoint for a GGUF file; random weights need a directory with a config.json"
            raise refusal("inflight_weights", "random", allowed)
        self.config = read_json(self.path / "config.json")
        if self.config.get("quantization_config"):
            allowed = "checkpoint for a quantised model; random ones are not quantised"
            raise refusal("inflight_weights", "random", allowed)

    @property
    def architectures(self) -> list[str]:
        return list(self.config.get("architectures") or [])

    @property
    def quantized_bytes(self) -> int | None:
        return None

    def __contains__(self, name: str) -> bool:
        return name.endswith((".experts.gate_up_proj", ".gate.weight"))

    def tensor(self, name: str, *shape: int) -> Weights:
        if len(shape) == 1:
            return np.full(shape, 1.0 if "norm" in name else 0.0, np.float32)
        return np.broadcast_to(np.float32(0), shape)

    def matrix(self, name: str, *shape: int) -> Weights:
        return self.tensor(name, *shape)
