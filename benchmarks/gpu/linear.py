"""`python -m benchmarks.gpu.linear`: matrix products of the 8B shape on the GPU, library against own kernels."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton

from python_backend.engine.cuda.kernels.activation import activate_multiply
from python_backend.engine.cuda.kernels.matvec import MatvecTiling, matvec
from python_backend.engine.cuda.kernels.normalization import add_rms_norm
from python_backend.engine.cuda.kernels.skinny_product import SkinnyTiling, skinny_product

SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
HEAD = (128256, 4096)
DEVICE = "cuda"


def graph_us(work: Callable[[], Any], repeats: int = 20) -> float:
    work()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return sorted(times)[len(times) // 2]


def matrices(shape: tuple[int, int], count: int) -> list[torch.Tensor]:
    return [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) * 0.02 for _ in range(count)]


def library() -> None:
    print("cuBLAS, microseconds a product (share of 4.18 TB/s | TFLOP/s)")
    for name, shape in {**SHAPES, "head": HEAD}.items():
        count = 1 if name == "head" else 8
        weights = matrices(shape, count)
        line = f"{name:8}"
        for rows in (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 2048, 4096, 8192):
            if name == "head" and rows > 512:
                continue
            x = torch.randn(rows, shape[1], device=DEVICE, dtype=torch.bfloat16)
            outs = [x.new_empty(rows, shape[0]) for _ in range(count)]

            def work() -> None:
                for weight, out in zip(weights, outs, strict=True):
                    torch.mm(x, weight.t(), out=out)

            us = graph_us(work, 10 if rows <= 512 else 5) / count
            bw = shape[0] * shape[1] * 2 / us / 4.18e6
            tf = 2 * rows * shape[0] * shape[1] / us / 1e6
            line += f" {rows}:{us:.0f}({bw:.2f}|{tf:.0f})"
            del outs
        print(line, flush=True)


def own() -> None:
    print("skinny product, best of tilings (rows, outputs, length, parts, warps, stages), beside the library")
    for name, shape in SHAPES.items():
        weights = matrices(shape, 8)
        for rows in (32, 96, 128, 192, 256):
            x = torch.randn(rows, shape[1], device=DEVICE, dtype=torch.bfloat16)
            library_us = graph_us(lambda: [torch.mm(x, w.t()) for w in weights], 6) / 8
            found = []
            for tiling in TILINGS:
                if tiling.rows > max(64, triton.next_power_of_2(rows)) or (rows > 64 and tiling.rows < 64):
                    continue
                try:
                    us = graph_us(lambda: [skinny_product(x, w, tiling) for w in weights], 6) / 8
                except Exception as error:
                    print("failed", tuple(tiling), str(error)[:80])
                    continue
                worst = (
                    (skinny_product(x, weights[-1], tiling).sum(0) - x.float() @ weights[-1].float().t())
                    .abs()
                    .max()
                    .item()
                )
                found.append((us, tuple(tiling), worst))
            found.sort()
            print(
                f"{name:8} {rows:4} library {library_us:.1f}",
                " ".join(f"{us:.1f}{c}" for us, c, _ in found[:4]),
                f"err {found[0][2]:.3g}",
                flush=True,
            )


TILINGS = [
    SkinnyTiling(32, 64, 128, 2, 4, 4),
    SkinnyTiling(64, 64, 128, 2, 4, 4),
    SkinnyTiling(128, 64, 64, 2, 4, 4),
    SkinnyTiling(128, 64, 64, 4, 4, 4),
    SkinnyTiling(128, 64, 128, 1, 4, 3),
    SkinnyTiling(128, 64, 128, 2, 4, 4),
    SkinnyTiling(128, 128, 64, 1, 4, 4),
    SkinnyTiling(128, 128, 64, 2, 4, 4),
    SkinnyTiling(128, 128, 64, 4, 8, 4),
    SkinnyTiling(128, 128, 128, 4, 8, 3),
    SkinnyTiling(256, 64, 64, 2, 4, 4),
    SkinnyTiling(256, 128, 64, 1, 8, 3),
    SkinnyTiling(256, 128, 64, 2, 8, 4),
    SkinnyTiling(256, 128, 64, 4, 8, 4),
]


def vectors() -> None:
    print("matvec, best of configurations")
    for name, shape in {**SHAPES, "head": HEAD}.items():
        count = 2 if name == "head" else 8
        weights = matrices(shape, count)
        gated = name == "gate_up"
        has_norm = name in ("qkv", "gate_up")
        x = torch.randn(shape[1], device=DEVICE, dtype=torch.bfloat16)
        norm = (torch.randn(shape[1], device=DEVICE, dtype=torch.bfloat16), 1e-5) if has_norm else None
        out = torch.empty(shape[0] // 2 if gated else shape[0], device=DEVICE, dtype=torch.bfloat16)
        found = []
        for tiling in (
            MatvecTiling(1, 2048, 4),
            MatvecTiling(2, 1024, 4),
            MatvecTiling(4, 2048, 8),
            MatvecTiling(8, 512, 4),
        ):
            us = (
                graph_us(
                    lambda: [matvec(x, w, out, norm=norm, gated=gated, tiling=tiling) for w in weights], 6
                )
                / count
            )
            found.append((us, tuple(tiling)))
        found.sort()
        bw = shape[0] * shape[1] * 2 / found[0][0] / 4.18e6
        print(f"{name:8} {bw:.2f}", " ".join(f"{us:.1f}{c}" for us, c in found[:6]), flush=True)


def chain() -> None:
    """A decode step of one row without attention, 32 layers of weights of their own."""
    layers = [
        {
            name: torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) * 0.02
            for name, shape in SHAPES.items()
        }
        for _ in range(32)
    ]
    norm = torch.ones(4096, device=DEVICE, dtype=torch.bfloat16)
    hidden = torch.randn(4096, device=DEVICE, dtype=torch.bfloat16)
    qkv, mid = (torch.empty(n, device=DEVICE, dtype=torch.bfloat16) for n in (6144, 14336))

    def step() -> None:
        for layer in layers:
            matvec(hidden, layer["qkv"], qkv, norm=(norm, 1e-5))
            matvec(qkv[:4096], layer["out"], hidden, residual=hidden)
            matvec(hidden, layer["gate_up"], mid, norm=(norm, 1e-5), gated=True)
            matvec(mid, layer["down"], hidden, residual=hidden)

    print(f"chain of one row {graph_us(step, 10) / 1000:.3f} ms (floor 3.340)", flush=True)
    for rows in (1, 32, 256):
        x = torch.randn(rows, 4096, device=DEVICE, dtype=torch.bfloat16)

        def cublas() -> None:
            delta = None
            for layer in layers:
                q = torch.mm(add_rms_norm(x, delta, norm, 1e-5), layer["qkv"].t())
                delta = torch.mm(q[:, :4096], layer["out"].t())
                g = torch.mm(add_rms_norm(x, delta, norm, 1e-5), layer["gate_up"].t())
                delta = torch.mm(activate_multiply(g, False), layer["down"].t())

        print(f"chain cublas rows {rows} {graph_us(cublas, 10) / 1000:.3f} ms", flush=True)
        begin = time.perf_counter()
        cublas()
        host = time.perf_counter() - begin
        torch.cuda.synchronize()
        print(f"   eager host time {host * 1000:.2f} ms", flush=True)


def main() -> None:
    torch.manual_seed(0)
    source, target = (torch.empty(2**32, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    us = graph_us(lambda: target.copy_(source), 5)
    print(f"copy {2 * 2**32 / us / 1e6:.2f} TB/s", flush=True)
    del source, target
    x, w = (
        torch.randn(8, 4096, device=DEVICE, dtype=torch.bfloat16),
        torch.randn(512, 4096, device=DEVICE, dtype=torch.bfloat16),
    )
    exact = torch.empty(8, 512, device=DEVICE)
    try:
        torch.mm(x, w.t(), out_dtype=torch.float32, out=exact)
        print("mm into fp32:", (exact - x.float() @ w.float().t()).abs().max().item(), flush=True)
    except Exception as error:
        print("mm into fp32 failed", repr(error)[:300], flush=True)
    for part in sys.argv[1:] or ("library", "vectors", "chain", "own"):
        begin = time.perf_counter()
        {"library": library, "own": own, "vectors": vectors, "chain": chain}[part]()
        print(f"[{part} {time.perf_counter() - begin:.0f} s]", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
