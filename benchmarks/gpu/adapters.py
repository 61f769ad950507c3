"""`python -m benchmarks.gpu.adapters`: what LoRA adapters add to the products of the 8B shape, kernels alone.

Eight adapters of rank 16 in batches of single tokens, and one in a prompt; every tiling worth a try, first of
what shrinks and then, with the best of them, of what expands. Layers are read in turn, so that nothing is
found in the cache. Before anything is measured, all kernels are compiled by as many processes as there are
cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product, repeat
from multiprocessing import get_context
from typing import NamedTuple

import torch

from benchmarks.gpu.product_times import median_us
from python_backend.engine.cuda.kernels.adapters import (
    RANKS,
    ROWS,
    ExpandTiling,
    RowTiles,
    ShrinkTiling,
    expand,
    expand_tiling,
    shrink,
    shrink_tiling,
)
from python_backend.engine.cuda.kernels.experts import arrange

# Inputs and the outputs of each part.
SHAPES = {
    "qkv": (4096, (4096, 1024, 1024)),
    "out": (4096, (4096,)),
    "gate_up": (4096, (14336, 14336)),
    "down": (14336, (4096,)),
}
INTO_RESIDUAL = ("out", "down")
ADAPTERS, LAYERS = 8, 32
# Rows, and how many adapters they have.
BATCHES = ((1, 1), (8, ADAPTERS), (32, ADAPTERS), (256, ADAPTERS), (512, 1))
# Up to so many rows, products into the residual come in parts, which are fp32.
ROWS_IN_PARTS = 64
DTYPE = torch.bfloat16
SHRINKING = tuple(
    ShrinkTiling(length, warps)
    for length, warps in product((256, 512, 1024, 2048), (2, 4, 8))
    if 64 <= length // warps <= 256
)
EXPANDING = tuple(map(ExpandTiling._make, product((64, 128, 256, 512), (2, 4, 8))))


class Case(NamedTuple):
    name: str
    rows: int
    adapters: int


class Addition:
    """What adapters add to one product, in one layer after the other."""

    def __init__(self, case: Case, layers: int = LAYERS) -> None:
        length, self._widths = SHAPES[case.name]
        self._parts = len(self._widths)
        self._layers = range(layers)
        entries = (ADAPTERS, layers * self._parts)
        places = torch.arange(case.rows, dtype=torch.int32, device="cuda") % case.adapters
        self._tiles = RowTiles(*arrange(places, ADAPTERS, ROWS))
        self._rows = torch.randn(case.rows, length, device="cuda", dtype=DTYPE)
        in_parts = case.name in INTO_RESIDUAL and 1 < case.rows <= ROWS_IN_PARTS
        kind = torch.float32 if in_parts else DTYPE
        self._out = torch.zeros(case.rows, sum(self._widths), device="cuda", dtype=kind)
        self._ranks = torch.full(entries, RANKS, dtype=torch.int32, device="cuda")
        self._first = torch.randn(*entries, RANKS * length, device="cuda", dtype=DTYPE)
        self._second = torch.randn(*entries, RANKS * max(self._widths), device="cuda", dtype=DTYPE)
        self._shrink_at, self._expand_at = map(_addresses, (self._first, self._second))

    def __call__(self, shrinking: ShrinkTiling, expanding: ExpandTiling, layer: int = 0) -> None:
        first, tiles, ranks = layer * self._parts, self._tiles, self._ranks
        shrunk = shrink(self._rows, tiles, self._shrink_at, ranks, first, self._parts, RANKS, shrinking)
        expand(self._out, shrunk, tiles, self._expand_at, ranks, first, self._widths, DTYPE, expanding)

    def us(self, shrinking: ShrinkTiling, expanding: ExpandTiling) -> float:
        return median_us([partial(self, shrinking, expanding, layer) for layer in self._layers])


def _addresses(matrices: torch.Tensor) -> torch.Tensor:
    places, entries, size = matrices.shape
    number = torch.arange(places * entries, device="cuda").view(places, entries)
    return matrices.data_ptr() + number * size * matrices.element_size()


def cases() -> Iterator[Case]:
    for name, (rows, adapters) in product(SHAPES, BATCHES):
        yield Case(name, rows, adapters)


def compile_share(index: int, count: int) -> None:
    """Each pair of tilings, as whichever shrinks best may meet any that expands."""
    tried = list(product(cases(), SHRINKING, EXPANDING))[index::count]
    additions: dict[Case, Addition] = {}
    for case, shrinking, expanding in tried:
        additions[case] = additions.get(case) or Addition(case, layers=1)
        additions[case](shrinking, expanding)


def compile_all() -> None:
    workers = os.cpu_count() or 1
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(compile_share, range(workers), repeat(workers)))


def report(case: Case) -> None:
    addition = Addition(case)
    shrinking, expanding = shrink_tiling(DTYPE), expand_tiling(RANKS, DTYPE)
    now_us = addition.us(shrinking, expanding)
    by_shrinking = {tiling: addition.us(tiling, expanding) for tiling in SHRINKING}
    shrinks = sorted(by_shrinking, key=by_shrinking.__getitem__)[:3]
    by_expanding = {tiling: addition.us(shrinks[0], tiling) for tiling in EXPANDING}
    expands = sorted(by_expanding, key=by_expanding.__getitem__)[:3]
    told = ", ".join(f"{tuple(each)} {by_shrinking[each]:.1f}" for each in shrinks)
    print(
        f"{case.name:8} {case.rows:3} rows of {case.adapters}: now {now_us:.1f}; shrinking {told}; ", end=""
    )
    print(
        "then expanding", ", ".join(f"{tuple(each)} {by_expanding[each]:.1f}" for each in expands), flush=True
    )


def main() -> None:
    torch.manual_seed(0)
    begin = time.perf_counter()
    compile_all()
    print(f"[compiled in {time.perf_counter() - begin:.0f} s; us of both kernels]", flush=True)
    for case in cases():
        report(case)
    print(f"[{time.perf_counter() - begin:.0f} s]", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
