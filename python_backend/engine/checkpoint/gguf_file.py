"""A model in one GGUF file, whose quantized tensors become fp32 one by one as they are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quant_shape_to_byte_shape
from numpy.typing import NDArray

from python_backend.engine.checkpoint.gguf_config import hugging_face_config
from python_backend.engine.checkpoint.gguf_groups import GROUPED_KINDS, grouped
from python_backend.engine.checkpoint.gguf_names import GGUF_FAMILIES, MIXTRAL, ROPE_TENSORS, GgufFamily
from python_backend.engine.checkpoint.grouped import Matrix, Weights, of_rows
from python_backend.engine.checkpoint.source import unusable
from python_backend.gguf.header import GgufTensor, read_header
from python_backend.wire.errors import ErrorKind, InflightError


@dataclass(frozen=True, slots=True)
class _Located:
    """A tensor, or the part of it that belongs to one expert."""

    tensor: GgufTensor
    expert: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape if self.expert is None else self.tensor.shape[1:]

    @property
    def stored_bytes(self) -> int:
        whole = self.tensor.end - self.tensor.begin
        return whole if self.expert is None else whole // self.tensor.shape[0]


class GgufFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = read_header(path)
        # Copy on write: nobody writes, but torch warns about arrays that it could not write to.
        self._bytes: NDArray[np.uint8] = np.memmap(path, mode="c")
        self._family = self._known_family()
        self.config: dict[str, Any] = hugging_face_config(
            self._header, self._family, lambda name: self._fp32(self._header.tensors[name])
        )
        self._located = self._locate()

    def names(self) -> Iterable[str]:
        return self._located

    def shape(self, name: str) -> tuple[int, ...]:
        return self._located[name].shape

    def stored_bytes(self, name: str) -> int:
        return self._located[name].stored_bytes

    def is_grouped(self, name: str) -> bool:
        located = self._located[name]
        return located.tensor.kind in GROUPED_KINDS and len(located.shape) == 2

    def matrix(self, name: str) -> Matrix:
        located = self._located[name]
        weights: Matrix
        if self.is_grouped(name):
            weights = grouped(self._octets(located.tensor, located.expert), located.tensor.kind)
        else:
            weights = self._fp32(located.tensor, located.expert)
            if self._family.norm_offset and "norm" in name:
                return weights - np.float32(self._family.norm_offset)
        for part, heads in ((".q_proj.", "num_attention_heads"), (".k_proj.", "num_key_value_heads")):
            if self._family.is_permuted and part in name:
                return of_rows(weights, partial(undo_permutation, heads=self.config[heads]))
        return weights

    def _known_family(self) -> GgufFamily:
        fields = self._header.fields
        if (parts := fields.get("split.count", 0)) > 1:
            raise unusable(f"{self._path} is one of {parts} parts of a model; merge them into one file first")
        kind = fields.get("general.architecture")
        if kind not in GGUF_FAMILIES:
            raise InflightError(
                ErrorKind.UNSUPPORTED,
                f"{self._path} contains a {kind!r} model, which this engine does not support in GGUF; "
                f"supported: {', '.join(sorted(GGUF_FAMILIES))}",
            )
        return MIXTRAL if kind == "llama" and fields.get("llama.expert_count") else GGUF_FAMILIES[kind]

    def _locate(self) -> dict[str, _Located]:
        experts = self.config.get("num_local_experts", 0)
        located: dict[str, _Located] = {}
        for stored_name, tensor in self._header.tensors.items():
            names = dict(self._family.hugging_face_names(stored_name, experts))
            if not names and stored_name not in ROPE_TENSORS:
                raise unusable(
                    f"{self._path} has a tensor that a {self._family.architecture} does not have: "
                    f"{stored_name}"
                )
            located |= {name: _Located(tensor, expert) for name, expert in names.items()}
        return located

    def _octets(self, tensor: GgufTensor, expert: int | None) -> NDArray[np.uint8]:
        stored = self._bytes[tensor.begin : tensor.end].reshape(
            quant_shape_to_byte_shape(tensor.shape, tensor.kind)
        )
        return stored if expert is None else stored[expert]

    def _fp32(self, tensor: GgufTensor, expert: int | None = None) -> Weights:
        stored = self._octets(tensor, expert)
        if tensor.kind is GGMLQuantizationType.F64:
            return stored.view(np.float64).astype(np.float32)
        try:
            weights: Weights = np.require(dequantize(stored, tensor.kind), np.float32, ("C", "A"))
        except NotImplementedError as error:
            raise InflightError(
                ErrorKind.UNSUPPORTED,
                f"{self._path} has tensors in {tensor.kind.name}, which is not supported",
            ) from error
        return weights


def undo_permutation(weights: NDArray[Any], heads: int) -> NDArray[Any]:
    """GGUF keeps the two rows of each rotated pair of q and k together, Hugging Face half a head apart."""
    pairs = weights.reshape(heads, -1, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)
