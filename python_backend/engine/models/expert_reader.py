"""Takes a layer's experts out of a checkpoint, whatever the family calls them and however they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backend.engine.checkpoint import TensorStore
from python_backend.engine.checkpoint.grouped import concatenated, of_rows, stacked, times
from python_backend.engine.models.decoder import (
    DecoderShape,
    ExpertShape,
    ExpertWeights,
    Grouped,
    Matrix,
    Weights,
    dense,
)
from python_backend.engine.models.layout import ExpertLayout, Layout


def read_experts(
    checkpoint: TensorStore, shape: DecoderShape, layout: Layout, index: int
) -> ExpertWeights | None:
    experts = layout.experts
    if experts is None or shape.experts is None or not experts.is_sparse(index):
        return None
    places = [f"model.layers.{index}.{prefix}" for prefix in experts.prefixes]
    place = next((each for each in places if f"{each}.{experts.router}.weight" in checkpoint), places[0])
    return _Place(checkpoint, place, shape.hidden, shape.experts, experts, layout.residual_scale).read()


class _Place:
    """The experts of one layer; `_name` is where they are."""

    def __init__(
        self,
        checkpoint: TensorStore,
        name: str,
        hidden: int,
        shape: ExpertShape,
        layout: ExpertLayout,
        scale: float,
    ) -> None:
        self._checkpoint = checkpoint
        self._name = name
        self._hidden = hidden
        self._shape = shape
        self._layout = layout
        self._scale = scale

    def read(self) -> ExpertWeights:
        shape, hidden, name = self._shape, self._hidden, self._name
        tensor, has_biases = self._checkpoint.tensor, self._layout.has_biases
        router = tensor(f"{name}.{self._layout.router}.weight", shape.count, hidden)
        if self._layout.takes_turns:
            gate_up, down = self._taking_turns()
        elif f"{name}.experts.gate_up_proj" in self._checkpoint:
            gate_up = self._checkpoint.matrix(
                f"{name}.experts.gate_up_proj", shape.count, 2 * shape.intermediate, hidden
            )
            down = self._checkpoint.matrix(
                f"{name}.experts.down_proj", shape.count, hidden, shape.intermediate
            )
        else:
            gate_up, down = self._one_by_one()
        if shape.shared:
            router, gate_up, down = self._with_shared(router, gate_up, down)
        return ExpertWeights(
            router,
            gate_up,
            times(down, self._scale),
            tensor(f"{name}.{self._layout.router}.bias", shape.count) if has_biases else None,
            self._gate_up_bias() if has_biases else None,
            self._down_bias() if has_biases else None,
        )

    def _one_by_one(self) -> tuple[Matrix, Matrix]:
        each = [f"{self._name}.experts.{expert}" for expert in range(self._shape.count)]
        pairs = [self._mlp(name, self._shape.intermediate) for name in each]
        return stacked([gate_up for gate_up, _ in pairs]), stacked([down for _, down in pairs])

    def _mlp(self, name: str, width: int) -> tuple[Matrix, Matrix]:
        layout, matrix = self._layout, self._checkpoint.matrix
        gate_up = [matrix(f"{name}.{part}.weight", width, self._hidden) for part in (layout.gate, layout.up)]
        return concatenated(gate_up), matrix(f"{name}.{layout.down}.weight", self._hidden, width)

    def _taking_turns(self) -> tuple[Matrix, Matrix]:
        shape, hidden, name = self._shape, self._hidden, f"{self._name}.experts"
        count, width, matrix = shape.count, shape.intermediate, self._checkpoint.matrix
        if f"{name}.gate_up_proj.weight" in self._checkpoint:
            gate_up = matrix(f"{name}.gate_up_proj.weight", count, 2 * width, hidden)
            return of_rows(gate_up, _apart), matrix(f"{name}.down_proj.weight", count, hidden, width)
        gate_up = dense(matrix(f"{name}.gate_up_proj", count, hidden, 2 * width))
        down = dense(matrix(f"{name}.down_proj", count, width, hidden))
        return _apart(gate_up.swapaxes(1, 2)), np.ascontiguousarray(down.swapaxes(1, 2))

    def _gate_up_bias(self) -> Weights:
        shape = self._shape
        bias = self._checkpoint.tensor(
            f"{self._name}.experts.gate_up_proj_bias", shape.count, 2 * shape.intermediate
        )
        return _apart(bias[..., None])[..., 0]

    def _down_bias(self) -> Weights:
        name = f"{self._name}.experts.down_proj_bias"
        return self._checkpoint.tensor(name, self._shape.count, self._hidden) * np.float32(self._scale)

    def _with_shared(self, router: Weights, gate_up: Matrix, down: Matrix) -> tuple[Weights, Matrix, Matrix]:
        """The shared expert, cut along its width into parts like the others: their sum is what it gives."""
        width, total = self._shape.intermediate, self._layout.shared_width
        name = f"{self._name}.{self._layout.shared}"
        gate = self._checkpoint.tensor(f"{name}_gate.weight", 1, self._hidden)
        whole, back = self._mlp(name, total)
        ends = [(begin, min(begin + width, total)) for begin in range(0, total, width)]
        gates_ups = [
            concatenated([_rows(whole, begin, end, width), _rows(whole, total + begin, total + end, width)])
            for begin, end in ends
        ]
        backs = [_columns(back, begin, end, width) for begin, end in ends]
        return (
            np.concatenate((router, gate)),
            _behind(gate_up, stacked(gates_ups)),
            _behind(down, stacked(backs)),
        )


def _apart(rows: NDArray[Any]) -> NDArray[Any]:
    """(experts, gates and ups in turns, …) as gates, then ups."""
    return np.ascontiguousarray(np.concatenate((rows[:, 0::2], rows[:, 1::2]), axis=1))


def _rows(matrix: Matrix, begin: int, end: int, height: int) -> Matrix:
    """Rows from `begin` to `end`, and zeros up to `height`."""

    def cut(rows: NDArray[Any]) -> NDArray[Any]:
        padded = np.zeros((height, rows.shape[1]), rows.dtype)
        padded[: end - begin] = rows[begin:end]
        return padded

    return of_rows(matrix, cut)


def _columns(matrix: Matrix, begin: int, end: int, width: int) -> Matrix:
    """Columns from `begin` to `end`, and zeros up to `width`."""
    if (
        isinstance(matrix, Grouped)
        and end - begin == width
        and begin % matrix.group == end % matrix.group == 0
    ):
        first, last = begin // matrix.group, end // matrix.group
        offsets = None if matrix.offsets is None else matrix.offsets[:, first:last]
        return Grouped(matrix.numbers, matrix.levels[:, begin:end], matrix.scales[:, first:last], offsets)
    padded = np.zeros((matrix.shape[0], width), np.float32)
    padded[:, : end - begin] = dense(matrix)[:, begin:end]
    return padded


def _behind(experts: Matrix, more: Matrix) -> Matrix:
    """More experts behind these: one long list of matrices, as rows of rows."""
    count, rows, _ = experts.shape
    flat = [of_rows(each, lambda part: part.reshape(-1, part.shape[-1])) for each in (experts, more)]
    return of_rows(concatenated(flat), lambda part: part.reshape(count + more.shape[0], rows, -1))
