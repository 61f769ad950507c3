"""One model on disk, whatever its format."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from python_backend.engine.checkpoint.gguf_file import GgufFile
from python_backend.engine.checkpoint.grouped import Matrix, Weights, dense
from python_backend.engine.checkpoint.quantized_files import QuantizedFiles
from python_backend.engine.checkpoint.safetensors_files import SafetensorsFiles
from python_backend.engine.checkpoint.source import TensorSource, unusable
from python_backend.engine.formats import scheme_of

# Told after every tensor how many bytes of the files are read by now, and how many there are.
LoadProgress = Callable[[int, int], None]


class Checkpoint:
    """The configuration and the tensors of one model, in Hugging Face's naming and in fp32."""

    def __init__(self, path: str | Path, progress: LoadProgress | None = None) -> None:
        self.path = Path(path)
        self._source = _open(self.path)
        self._names = frozenset(self._source.names())
        self._progress = progress
        self._unread = set(self._names)
        self._total_bytes = sum(self._source.stored_bytes(name) for name in self._names)
        self._done_bytes = 0

    @property
    def config(self) -> dict[str, Any]:
        return self._source.config

    @property
    def architectures(self) -> list[str]:
        return list(self.config.get("architectures") or [])

    @property
    def weight_bytes(self) -> int:
        """Size of all weights in fp32, counted from the files' headers."""
        return sum(4 * math.prod(self._source.shape(name)) for name in self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def quantized_bytes(self) -> int | None:
        """On a device that keeps them as they are, and the rest at two bytes."""
        source = self._source
        if not any(map(source.is_grouped, self._names)):
            return None
        return sum(
            source.stored_bytes(name) if source.is_grouped(name) else 2 * math.prod(source.shape(name))
            for name in self._names
        )

    def tensor(self, name: str, *shape: int) -> Weights:
        """The tensor in fp32; refuses one that is missing or not of this shape."""
        return dense(self.matrix(name, *shape))

    def matrix(self, name: str, *shape: int) -> Matrix:
        """The same, but quantised still where it is stored so in groups."""
        if name not in self._names:
            raise unusable(f"{self.path} lacks tensor {name}")
        found = self._source.shape(name)
        if found != shape:
            raise unusable(f"tensor {name} of {self.path} is {found}; its configuration implies {shape}")
        weights = self._source.matrix(name)
        self._report(name)
        return weights

    def _report(self, name: str) -> None:
        if name in self._unread:
            self._unread.remove(name)
            self._done_bytes += self._source.stored_bytes(name)
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes)


def _open(path: Path) -> TensorSource:
    if path.is_dir():
        files = SafetensorsFiles(path)
        scheme = scheme_of(files.config)
        return files if scheme is None else QuantizedFiles(files, scheme)
    if path.is_file() and path.suffix == ".gguf":
        return GgufFile(path)
    raise unusable(f"{path} is neither a checkpoint directory nor a .gguf file")
