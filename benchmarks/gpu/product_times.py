"""What benchmarks of single products share: the 8B shape, compiling by all cores, times without the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context

import torch

# (outputs, inputs)
SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
INTO_RESIDUAL, NORMED = ("out", "down"), ("qkv", "gate_up")
BANDWIDTH_TB_PER_S = 4.18
SHARED_BYTES = 227 << 10
# So many bytes are read in turn that nothing is found in the cache.
READ_BYTES = 256 << 20
DTYPE = torch.bfloat16
REPEATS = 9

Launches = Callable[[str], Iterator[Callable[[], object]]]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=DTYPE)


def median_us(products: Sequence[Callable[[], object]]) -> float:
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


def told(us: float, read_bytes: int, what: object = "") -> str:
    return f"{us:.1f} ({read_bytes / us / BANDWIDTH_TB_PER_S / 1e6:.0%}) {what}".rstrip()


def compile_all(launches: Launches, parts: list[str]) -> None:
    """Runs `launches(part)`, each kernel once with as little as it takes, in as many processes as cores."""
    workers = os.cpu_count() or 1
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        list(pool.map(_compile_share, repeat(launches), repeat(parts), range(workers), repeat(workers)))


def _compile_share(launches: Launches, parts: list[str], index: int, count: int) -> None:
    with torch.inference_mode():
        for launch in [launch for part in parts for launch in launches(part)][index::count]:
            try:
                launch()
            except Exception as error:
                print(f"  not compiled: {launch}: {repr(error)[:200]}", flush=True)
