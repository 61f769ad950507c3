"""`python -m benchmarks.gpu.linear`: products of the 8B shape, a library's beside our own kernels."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from python_backend.engine.cuda.kernels.activation import activate_multiply
from python_backend.engine.cuda.kernels.matvec import MatvecTiling, matvec
from python_backend.engine.cuda.kernels.normalization import add_rms_norm
from python_backend.engine.cuda.kernels.skinny_product import SkinnyTiling, skinny_product

SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
HEAD = (128256, 4096)
DEVICE = "cuda"
BANDWIDTH_TB_PER_S = 4.18
# So many different matrices in turn, that none is still in the L2 cache.
COPIES = 8
SKINNY_TILINGS = (
    SkinnyTiling(16, 64, 128, 2, 4, 4),
    SkinnyTiling(32, 64, 128, 2, 4, 4),
    SkinnyTiling(64, 64, 128, 2, 4, 4),
    SkinnyTiling(128, 64, 128, 2, 4, 4),
    SkinnyTiling(128, 64, 64, 4, 4, 4),
    SkinnyTiling(128, 128, 64, 2, 4, 4),
    SkinnyTiling(256, 128, 64, 2, 8, 4),
)
VECTOR_TILINGS = (
    MatvecTiling(1, 2048, 4),
    MatvecTiling(2, 1024, 4),
    MatvecTiling(4, 2048, 8),
    MatvecTiling(8, 512, 4),
)


def graph_us(work: Callable[[], Any], repeats: int = 10) -> float:
    """The median time of a recorded graph, so that launching is not what is measured."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times: list[float] = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return sorted(times)[len(times) // 2]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) * 0.02


def with_each(matrices: Iterable[torch.Tensor], multiply: Callable[[torch.Tensor], Any]) -> Any:
    return [multiply(matrix) for matrix in matrices]


def each_us(matrices: list[torch.Tensor], multiply: Callable[[torch.Tensor], Any]) -> float:
    return graph_us(partial(with_each, matrices, multiply)) / len(matrices)


def library_product(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return torch.mm(rows, matrix.t())


def library() -> None:
    print(f"the library, us a product (share of {BANDWIDTH_TB_PER_S} TB/s, TFLOP/s)")
    for name, shape in {**SHAPES, "head": HEAD}.items():
        matrices = [numbers(*shape) for _ in range(1 if name == "head" else COPIES)]
        for rows in (1, 8, 32, 64, 128, 256, 512, 2048, 8192):
            us = each_us(matrices, partial(library_product, numbers(rows, shape[1])))
            share = shape[0] * shape[1] * 2 / us / BANDWIDTH_TB_PER_S / 1e6
            tflops = 2 * rows * shape[0] * shape[1] / us / 1e6
            print(f"  {name:8} {rows:5} rows {us:8.1f} us {share:6.2f} {tflops:6.0f}", flush=True)


def sizes() -> None:
    """By the rows of a step: what takes less time with more of them is no size for a graph."""
    print("products of a layer by the library, us")
    matrices = {name: [numbers(*shape) for _ in range(COPIES)] for name, shape in SHAPES.items()}
    for count in (*range(16, 128, 16), *range(128, 1056, 32)):
        us = {
            name: each_us(matrices[name], partial(library_product, numbers(count, shape[1])))
            for name, shape in SHAPES.items()
        }
        parts = " ".join(f"{name} {each:.0f}" for name, each in us.items())
        print(f"  {count:5} rows {sum(us.values()):7.1f}: {parts}", flush=True)


def skinny() -> None:
    print("few rows, the library and the best tilings")
    for name, shape in SHAPES.items():
        matrices = [numbers(*shape) for _ in range(COPIES)]
        for count in (8, 32, 64, 128, 256):
            rows = numbers(count, shape[1])
            expected = rows.float() @ matrices[-1].float().t()
            found = []
            for tiling in SKINNY_TILINGS:
                if tiling.rows > max(16, 2 * count) or tiling.rows < min(count, 64):
                    continue
                us = each_us(matrices, partial(skinny_product, rows, tiling=tiling))
                worst = (skinny_product(rows, matrices[-1], tiling).sum(0) - expected).abs().max().item()
                found.append((us, tuple(tiling), worst))
            best = " ".join(f"{us:.1f} {tiling}" for us, tiling, _ in sorted(found)[:3])
            library_us = each_us(matrices, partial(library_product, rows))
            error = max(worst for _, _, worst in found)
            print(f"  {name:8} {count:4} library {library_us:.1f}, own {best}, error {error:.2g}", flush=True)


def vectors() -> None:
    print("one row, the best tilings")
    for name, shape in {**SHAPES, "head": HEAD}.items():
        matrices = [numbers(*shape) for _ in range(2 if name == "head" else COPIES)]
        is_gated, has_norm = name == "gate_up", name in ("qkv", "gate_up")
        row, norm = numbers(shape[1]), (numbers(shape[1]), 1e-5)
        out = numbers(shape[0] // 2 if is_gated else shape[0])
        found = []
        for tiling in VECTOR_TILINGS:
            multiply = partial(
                matvec, row, out=out, norm=norm if has_norm else None, gated=is_gated, tiling=tiling
            )
            found.append((each_us(matrices, multiply), tuple(tiling)))
        best_us = min(found)[0]
        share = shape[0] * shape[1] * 2 / best_us / BANDWIDTH_TB_PER_S / 1e6
        print(f"  {name:8} {share:.2f}", " ".join(f"{us:.1f} {t}" for us, t in sorted(found)), flush=True)


def chain() -> None:
    """The products of a whole decoding step, 32 layers of weights of their own, without attention."""
    layers = [{name: numbers(*shape) for name, shape in SHAPES.items()} for _ in range(32)]
    norm = torch.ones(4096, device=DEVICE, dtype=torch.bfloat16)

    def single(row: torch.Tensor, qkv: torch.Tensor, gated: torch.Tensor) -> None:
        for layer in layers:
            matvec(row, layer["qkv"], qkv, norm=(norm, 1e-5))
            matvec(qkv[:4096], layer["out"], row, residual=row)
            matvec(row, layer["gate_up"], gated, norm=(norm, 1e-5), gated=True)
            matvec(gated, layer["down"], row, residual=row)

    def several(rows: torch.Tensor) -> None:
        delta = None
        for layer in layers:
            qkv = library_product(add_rms_norm(rows, delta, norm, 1e-5), layer["qkv"])
            delta = library_product(qkv[:, :4096], layer["out"])
            gate_up = library_product(add_rms_norm(rows, delta, norm, 1e-5), layer["gate_up"])
            delta = library_product(activate_multiply(gate_up, False), layer["down"])

    work = partial(single, numbers(4096), numbers(6144), numbers(14336))
    print(f"products of a step: one row {graph_us(work) / 1000:.3f} ms (reading the weights: 3.340)")
    for count in (1, 32, 256):
        print(
            f"  {count} rows by the library {graph_us(partial(several, numbers(count, 4096))) / 1000:.3f} ms"
        )


def main() -> None:
    parts = {"library": library, "sizes": sizes, "vectors": vectors, "chain": chain, "skinny": skinny}
    for name in sys.argv[1:] or parts:
        begin = time.perf_counter()
        parts[name]()
        print(f"[{name} {time.perf_counter() - begin:.0f} s]", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
