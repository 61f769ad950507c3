"""What a checkpoint format has to offer: a configuration and named tensors, both in Hugging Face's naming."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from python_backend.wire.errors import ErrorKind, InflightError

Weights = NDArray[np.float32]


def unusable(message: str) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, message)


class TensorSource(Protocol):
    """Files are mapped into memory, and tensors read when asked for."""

    @property
    def config(self) -> dict[str, Any]: ...

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def stored_bytes(self, name: str) -> int:
        """What the tensor takes in the file."""

    def read(self, name: str) -> Weights:
        """The tensor in fp32; it may be a view of the mapped file."""


class TensorStore(Protocol):
    """One model: what `Checkpoint` is, whatever else may stand for it."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> dict[str, Any]: ...

    @property
    def architectures(self) -> list[str]: ...

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str, *shape: int) -> Weights:
        """The tensor in fp32, of exactly this shape."""
