"""What a checkpoint format has to offer: a configuration and named tensors, both in Hugging Face's naming."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from python_backend.engine.checkpoint.grouped import Matrix, Weights
from python_backend.wire.errors import ErrorKind, InflightError


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

    def is_grouped(self, name: str) -> bool:
        """Whether it is stored as levels in groups."""

    def matrix(self, name: str) -> Matrix:
        """The tensor in fp32, which may be a view of the mapped file; or, where it is grouped, as it is."""


class TensorStore(Protocol):
    """One model: what `Checkpoint` is, whatever else may stand for it."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> dict[str, Any]: ...

    @property
    def architectures(self) -> list[str]: ...

    def __contains__(self, name: str) -> bool: ...

    @property
    def quantized_bytes(self) -> int | None:
        """What all tensors take in the files where they are quantised; None where they are not."""

    def tensor(self, name: str, *shape: int) -> Weights:
        """The tensor in fp32, of exactly this shape."""

    def matrix(self, name: str, *shape: int) -> Matrix:
        """The same, but quantised still where it is stored so in groups."""
