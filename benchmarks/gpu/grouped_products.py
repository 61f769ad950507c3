"""Products of the 8B shape with 4 and 8 bits a weight against bf16, for every tiling that is worth a try."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from python_backend.engine.cuda.grouped import GroupedLinear, keep_grouped
from python_backend.engine.cuda.kernels.grouped import GroupedArrays, GroupedTiling, grouped_product
from python_backend.engine.models.decoder import Grouped, Numbers

SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
ROWS = (1, 8, 32, 64, 128, 256, 512, 1024)
TILINGS = tuple(
    GroupedTiling(rows, outputs, parts, warps, stages)
    for rows in (16, 32, 64, 128)
    for outputs in (32, 64, 128)
    for parts in (1, 2, 4)
    for warps, stages in ((4, 4), (4, 6), (8, 3))
)
# So many matrices are read in turn that none is found in the cache.
MATRICES, REPEATS = 8, 9


def random_matrix(numbers: Numbers, outputs: int, inputs: int, group: int = 128) -> GroupedArrays:
    dice = np.random.default_rng(0)
    levels = dice.integers(-8, 8, (outputs, inputs)).astype(np.int8)
    if numbers is Numbers.E4M3:
        levels = dice.integers(0, 0x70, (outputs, inputs)).astype(np.uint8)
    scales = np.full((outputs, inputs // group), 0.004, np.float32)
    kept = keep_grouped(Grouped(numbers, levels, scales), torch.device("cuda"))
    assert kept is not None
    return kept


def copies(matrix: GroupedArrays) -> list[GroupedArrays]:
    return [matrix._replace(levels=matrix.levels.clone()) for _ in range(MATRICES)]


def median_us(products: list[Callable[[], object]]) -> float:
    """Of one product, without the host: replayed as a graph."""
    products[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product in products:
            product()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / len(products))
    return sorted(times)[REPEATS // 2]


def fits(tiling: GroupedTiling, rows: int) -> bool:
    """Rows are neither cut into many tiles nor padded to many times their number."""
    return tiling.rows <= max(16, 2 * rows) and rows <= 4 * tiling.rows and (tiling.parts == 1 or rows <= 64)


def tried(x: torch.Tensor, matrices: list[GroupedArrays]) -> list[tuple[float, GroupedTiling]]:
    """What each tiling took, the quickest first."""
    found = []
    for tiling in TILINGS:
        if fits(tiling, len(x)):
            product = partial(grouped_product, x, in_parts=tiling.parts > 1, tiling=tiling)
            try:
                found.append((median_us([partial(product, matrix) for matrix in matrices]), tiling))
            except Exception as error:
                print(f"  {tiling}: {repr(error)[:100]}")
    return sorted(found)


def compare(name: str, numbers: Numbers, full: list[torch.Tensor], matrices: list[GroupedArrays]) -> None:
    linears = [GroupedLinear(matrix) for matrix in matrices]
    outputs, inputs = full[0].shape
    for rows in ROWS:
        x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
        plain = median_us([partial(torch.mm, x, weight.t()) for weight in full])
        chosen = median_us([partial(linear, x) for linear in linears])
        line = f"{name:8} {numbers.value:5} {rows:5} rows  bf16 {plain:8.1f} us  ours {chosen:8.1f}"
        if rows == 1:
            out = x.new_empty(outputs)
            line += (
                f"  one row {median_us([partial(linear.times_row, x[0], out) for linear in linears]):8.1f}"
            )
        best = "  ".join(f"{took:.1f} {tuple(tiling)}" for took, tiling in tried(x, matrices)[:3])
        print(f"{line}  best {best}", flush=True)


@torch.inference_mode()
def report() -> None:
    for name, (outputs, inputs) in SHAPES.items():
        full = [torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) for _ in range(MATRICES)]
        for numbers in (Numbers.INT4, Numbers.E4M3):
            compare(name, numbers, full, copies(random_matrix(numbers, outputs, inputs)))
            torch.cuda.empty_cache()
