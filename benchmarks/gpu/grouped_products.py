"""`python -m benchmarks.gpu.grouped_products int4`: products with 4 bits a weight, every tiling worth a try.

Also `fp8` (in blocks of 128 inputs). Products into the residual are measured with the norm behind them,
which adds their parts. Before anything is measured, all kernels are compiled by as many processes as there
are cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.product_times import (
    BANDWIDTH_TB_PER_S,
    DTYPE,
    INTO_RESIDUAL,
    NORMED,
    READ_BYTES,
    SHAPES,
    SHARED_BYTES,
    compile_all,
    median_us,
    numbers,
    told,
)
from python_backend.engine.cuda.grouped import GroupedLinear, keep_grouped
from python_backend.engine.cuda.kernels.grouped import (
    GroupedArrays,
    GroupedTiling,
    grouped_product,
    written_out,
)
from python_backend.engine.cuda.kernels.grouped_matvec import GroupedMatvecTiling, grouped_matvec
from python_backend.engine.cuda.kernels.normalization import add_rms_norm
from python_backend.engine.models.decoder import Grouped, Numbers

ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
KINDS = {"int4": Numbers.INT4, "fp8": Numbers.E4M3}
GROUP = 128
VECTOR_TILINGS = tuple(
    GroupedMatvecTiling(outputs, 256 * warps, warps) for outputs, warps in product((2, 4, 8, 16), (1, 2, 4))
)
# Outputs, warps, stages; by whether sums are scaled or weights.
Form = tuple[int, int, int]
FORMS_BY_SUMS: tuple[Form, ...] = (
    (16, 1, 8),
    (32, 2, 4),
    (32, 2, 7),
    (64, 2, 4),
    (64, 2, 6),
    (64, 4, 4),
    (64, 4, 6),
    (128, 4, 4),
)
FORMS_BY_WEIGHTS: tuple[Form, ...] = (
    (64, 4, 3),
    (64, 4, 5),
    (128, 4, 3),
    (128, 4, 4),
    (128, 8, 3),
    (128, 8, 4),
    (256, 8, 3),
)
# Tiles of rows that are tried for a number of rows; those by sums and those by weights.
TILES = {
    1: ((8,), ()),
    8: ((8,), ()),
    16: ((16,), ()),
    32: ((32,), (32,)),
    64: ((64,), (64,)),
    128: ((), (64, 128)),
    256: ((), (128, 256)),
    512: ((), (128, 256)),
    1024: ((), (128, 256)),
}
PARTS = (1, 2, 4)
MOST_ACCUMULATORS = 128  # of a thread
Product = Callable[[Any], torch.Tensor]


def random_matrix(kind: str, outputs: int, inputs: int) -> GroupedArrays:
    dice = np.random.default_rng(0)
    numbers_of = KINDS[kind]
    is_e4m3 = numbers_of is Numbers.E4M3
    least, end, dtype = (0, 0x70, np.uint8) if is_e4m3 else (-8, 8, np.int8)
    levels = dice.integers(least, end, (outputs, inputs), dtype)
    scales = (dice.random((outputs, inputs // GROUP)) * 0.004 + 0.002).astype(np.float32)
    kept = keep_grouped(Grouped(numbers_of, levels, scales), torch.device("cuda"))
    assert kept is not None
    return kept


def copies_of(matrix: GroupedArrays) -> list[GroupedArrays]:
    more = READ_BYTES // matrix.levels.nbytes
    return [
        matrix,
        *(matrix._replace(levels=matrix.levels.clone(), scales=matrix.scales.clone()) for _ in range(more)),
    ]


def read_bytes(matrix: GroupedArrays) -> int:
    return int(matrix.levels.nbytes + matrix.scales.nbytes)


def forms(tile: int, by_sums: bool) -> Iterator[Form]:
    for outputs, warps, stages in FORMS_BY_SUMS if by_sums else FORMS_BY_WEIGHTS:
        accumulators = outputs * tile // (32 * warps) * (2 if by_sums else 1)
        shared_bytes = stages * (GROUP * (outputs // 2 + 2 * tile) + 4 * outputs)
        if accumulators <= MOST_ACCUMULATORS and shared_bytes <= SHARED_BYTES:
            yield outputs, warps, stages


def tilings(rows: int, name: str) -> Iterator[GroupedTiling]:
    for tiles, by_sums in zip(TILES[rows], (True, False), strict=True):
        for tile in tiles:
            for (outputs, warps, stages), parts in product(
                forms(tile, by_sums), PARTS if name in INTO_RESIDUAL else (1,)
            ):
                if parts > 1 or rows >= 128 or name not in INTO_RESIDUAL:
                    yield GroupedTiling(tile, outputs, parts, warps, stages, by_sums)


def of_rows(rows: torch.Tensor, tiling: GroupedTiling) -> Product:
    return lambda matrix: grouped_product(rows, matrix, in_parts=tiling.parts > 1, tiling=tiling)


def of_vector(name: str, inputs: int, tiling: GroupedMatvecTiling | None) -> Product:
    """One row, with what is around this product in a step."""
    row, norm, is_gated = numbers(inputs), numbers(inputs), name == "gate_up"

    def multiply(matrix: GroupedArrays) -> torch.Tensor:
        out = torch.empty(matrix.outputs // (1 + is_gated), device="cuda", dtype=DTYPE)
        return grouped_matvec(
            row,
            matrix,
            out,
            norm=(norm, 1e-5) if name in NORMED else None,
            residual=out if name in INTO_RESIDUAL else None,
            gated=is_gated,
            tiling=tiling,
        )

    return multiply


def launches(kind: str) -> Iterator[Callable[[], object]]:
    """Each kernel once, with as little as it takes."""
    seen = set()
    for name, (_, inputs) in SHAPES.items():
        matrix = random_matrix(kind, 256, inputs)
        for vector_tiling in VECTOR_TILINGS:
            yield partial(of_vector(name, inputs, vector_tiling), matrix)
        yield partial(written_out, matrix, DTYPE)
        for rows in ROWS:
            for tiling in tilings(rows, name):
                kernel = inputs, tiling._replace(parts=min(2, tiling.parts))
                if kernel not in seen:
                    seen.add(kernel)
                    yield partial(of_rows(numbers(1, inputs), tiling), matrix)


class Rows:
    """A number of rows against one of the shapes."""

    def __init__(self, name: str, copies: list[GroupedArrays], full: list[torch.Tensor], count: int) -> None:
        self._name = name
        self._copies = copies
        self._full = full
        self._rows = numbers(count, copies[0].length)
        self._exact = self._rows.float() @ written_out(copies[0], torch.float32).t()

    def us(self, multiply: Product) -> float:
        return median_us([partial(self._with_norm(multiply), matrix) for matrix in self._copies])

    def _with_norm(self, multiply: Product) -> Product:
        if self._name not in INTO_RESIDUAL:
            return multiply
        hidden, weight = numbers(len(self._rows), self._copies[0].outputs), numbers(self._copies[0].outputs)
        return lambda matrix: add_rms_norm(hidden, multiply(matrix), weight, 1e-5)

    def error(self, multiply: Product) -> float:
        found = multiply(self._copies[0]).float()
        found = found.sum(0) if found.dim() == 3 else found
        return float((found - self._exact).norm() / self._exact.norm())

    def library_us(self) -> float:
        def multiply(weight: torch.Tensor) -> torch.Tensor:
            return torch.mm(self._rows, weight.t())

        return median_us([partial(self._with_norm(multiply), weight) for weight in self._full])

    def now(self, matrix: GroupedArrays) -> torch.Tensor:
        linear = GroupedLinear(matrix)
        if self._name not in INTO_RESIDUAL:
            return linear(self._rows)
        found = linear.onto(self._rows, self._rows)
        assert found is not None  # it has no copy, which might be added in place
        return found

    def report(self) -> None:
        read = read_bytes(self._copies[0])
        print(
            f"{self._name:8} {len(self._rows):4} rows: bf16 library {self.library_us():.1f};"
            f" now {told(self.us(self.now), read)}, error {self.error(self.now):.2%}; best ",
            end="",
            flush=True,
        )
        took, errors = {}, {}
        for tiling in tilings(len(self._rows), self._name):
            try:
                took[tiling] = self.us(of_rows(self._rows, tiling))
                errors[tiling] = self.error(of_rows(self._rows, tiling))
            except Exception as error:
                print(f"\n  {tuple(tiling)}: {repr(error)[:200]}", flush=True)
        first = sorted(took, key=took.__getitem__)[:4]
        best = ", ".join(told(took[tiling], read, tuple(tiling)) for tiling in first)
        print(f"{best}; error of the worst {max(errors.values(), default=0.0):.2%}", flush=True)


def report_vector(name: str, copies: list[GroupedArrays]) -> None:
    read = read_bytes(copies[0])
    took = {
        tiling: median_us([partial(of_vector(name, copies[0].length, tiling), matrix) for matrix in copies])
        for tiling in (None, *VECTOR_TILINGS)
    }
    first = sorted(VECTOR_TILINGS, key=took.__getitem__)[:4]
    best = ", ".join(told(took[tiling], read, tuple(tiling)) for tiling in first)
    print(f"{name:8} as a vector: now {told(took[None], read)}; best {best}", flush=True)


def report_writing(name: str, copies: list[GroupedArrays]) -> None:
    us = median_us([partial(written_out, matrix, DTYPE) for matrix in copies])
    moved = read_bytes(copies[0]) + 2 * copies[0].outputs * copies[0].length
    print(f"{name:8} written out: {told(us, moved)}", flush=True)


def main() -> None:
    torch.manual_seed(0)
    begin, kinds = time.perf_counter(), sys.argv[1:] or ["int4"]
    compile_all(launches, kinds)
    print(
        f"[compiled in {time.perf_counter() - begin:.0f} s; us, share of {BANDWIDTH_TB_PER_S} TB/s; tilings"
        " are rows, outputs, parts, warps, stages, whether sums are scaled]",
        flush=True,
    )
    for kind, (name, shape) in product(kinds, SHAPES.items()):
        copies = copies_of(random_matrix(kind, *shape))
        full = [numbers(*shape) for _ in range(4)]
        report_vector(name, copies)
        report_writing(name, copies)
        for count in ROWS:
            Rows(name, copies, full, count).report()
    print(f"[{time.perf_counter() - begin:.0f} s]", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
