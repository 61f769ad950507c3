"""Reads the inputs of one row of a Triton request as plain values, refusing by name what does not fit."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from python_backend.triton_adapter.pb import Array
from python_backend.wire.errors import ErrorKind, InflightError


def invalid(name: str, sentence: str) -> InflightError:
    return InflightError(ErrorKind.INVALID_REQUEST, sentence, name)


class RowInputs:
    """One row; an input that is absent or empty has its default.

    Triton hands over scalars as [rows] and everything else as [rows, ...].
    """

    def __init__(self, inputs: Mapping[str, Array], row: int, rows: int) -> None:
        self._inputs = inputs
        self._row = row
        self._rows = rows

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self._single(name)
        return default if value is None else bool(value)

    def integer(self, name: str, default: int, least: int | None = None) -> int:
        value = self._single(name)
        number = default if value is None else int(value)
        if least is not None and number < least:
            raise invalid(name, f"{name} is {number}; it must be {least} or more")
        return number

    def number(
        self, name: str, default: float, *, least: float = -1e30, above: float = -1e30, most: float = 1e30
    ) -> float:
        value = self._single(name)
        number = default if value is None else float(value)
        if not (least <= number <= most and above < number):
            raise invalid(name, f"{name} is {number}; it must be {_describe_range(least, above, most)}")
        return number

    def text(self, name: str) -> str:
        value = self._single(name)
        if value is None or isinstance(value, str):
            return value or ""
        try:
            return bytes(value).decode()
        except UnicodeDecodeError as error:
            raise invalid(name, f"{name} is not valid UTF-8 (byte {error.start})") from None

    def integers(self, name: str) -> list[int]:
        cells = self._cells(name)
        if cells is None:
            return []
        values: list[int] = cells.reshape(-1).tolist()
        return values

    def token_ids(self, name: str) -> array[int]:
        """The same, where there may be a hundred thousand."""
        cells = self._cells(name)
        return array("i", b"" if cells is None else cells.astype(np.int32, copy=False).tobytes())

    def files(self, name: str) -> tuple[bytes, ...]:
        """Those that are not empty."""
        cells = self._cells(name)
        return () if cells is None else tuple(bytes(each) for each in cells.reshape(-1) if len(each))

    def words(self, name: str) -> tuple[tuple[int, ...], ...]:
        """A word list: row 0 the ids of all words, row 1 their cumulative ends, padded with -1."""
        cells = self._cells(name)
        if cells is None:
            return ()
        if cells.ndim != 2 or cells.shape[0] != 2:
            raise invalid(name, f"{name} must have shape [2, n], not {list(cells.shape)}")
        flat_ids, ends = cells.tolist()
        words, start = [], 0
        for end in ends:
            if end < 0:
                break
            if not start < end <= len(flat_ids):
                raise invalid(
                    name, f"{name} has the end {end} after {start}; ends must increase, up to {len(flat_ids)}"
                )
            words.append(tuple(flat_ids[start:end]))
            start = end
        return tuple(words)

    def sparse(self, name: str) -> dict[int, float]:
        """The entries of a vector that are not 0, by position."""
        cells = self._cells(name)
        if cells is None:
            return {}
        vector = cells.reshape(-1)
        if not np.isfinite(vector).all():
            raise invalid(name, f"{name} must hold finite numbers; use -1e9 to exclude a token")
        return {int(position): float(vector[position]) for position in np.flatnonzero(vector)}

    def _cells(self, name: str) -> Array | None:
        array = self._inputs.get(name)
        if array is None or array.size == 0:
            return None
        if array.ndim == 0 or array.shape[0] != self._rows:
            raise invalid(
                name, f"{name} has shape {list(array.shape)}; its first dimension must be {self._rows}"
            )
        return np.asarray(array[self._row])

    def _single(self, name: str) -> Any:
        cells = self._cells(name)
        if cells is None:
            return None
        if cells.size > 1:
            raise invalid(name, f"{name} must be one value a row, not {cells.size}")
        return cells.item()


def _describe_range(least: float, above: float, most: float) -> str:
    bounds = []
    if above > -1e30:
        bounds.append(f"above {above:g}")
    if least > -1e30:
        bounds.append(f"{least:g} or more")
    if most < 1e30:
        bounds.append(f"at most {most:g}")
    return " and ".join(bounds) or "a finite number"
