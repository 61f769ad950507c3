"""`python -m benchmarks.gpu.fp8`: products of the 8B shape with a byte a weight, every tiling worth a try.

Products into the residual are measured with the norm behind them, which adds their parts. Before anything is
measured, all kernels are compiled by as many processes as there are cores. `one` and `few` choose a half.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import product

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
from python_backend.engine.cuda.fp8 import Fp8Linear, quantize_weight
from python_backend.engine.cuda.head import quantize_to_int8
from python_backend.engine.cuda.kernels.matvec import MatvecTiling, matvec
from python_backend.engine.cuda.kernels.normalization import add_rms_norm
from python_backend.engine.cuda.kernels.quantization import quantize_rows
from python_backend.engine.cuda.kernels.skinny_product import SkinnyTiling, skinny_product

HEAD = {"head": (128256, 4096)}
ROWS = (2, 4, 8, 16, 32, 64, 128)
FP8 = torch.float8_e4m3fn

VECTOR_TILINGS = tuple(
    MatvecTiling(outputs, length, warps)
    for outputs, length, warps in product((1, 2, 4, 8), (1024, 2048, 4096), (4, 8))
    if 16 <= outputs * length // (32 * warps) <= 64
)
# Outputs, length, warps, stages; with 64 outputs for four warps tensor cores take rows from shared memory.
Form = tuple[int, int, int, int]
FORMS: tuple[Form, ...] = (
    (16, 256, 1, 4),
    (32, 256, 1, 4),
    (32, 128, 2, 6),
    (32, 128, 4, 4),
    (32, 256, 4, 3),
    (32, 256, 4, 5),
    (32, 512, 4, 3),
    (64, 128, 2, 4),
    (64, 256, 2, 3),
    (64, 256, 2, 4),
    (64, 128, 4, 4),
    (64, 128, 4, 6),
    (64, 256, 4, 3),
    (64, 256, 4, 5),
    (128, 128, 2, 4),
    (128, 128, 4, 4),
    (128, 128, 8, 4),
    (128, 256, 8, 3),
    (256, 128, 8, 3),
)
FORMS_FROM_MEMORY = tuple(form for form in FORMS if form[0] >= 64 and form[2] >= 4)
PARTS = (1, 2, 4, 7)
Product = Callable[[Fp8Linear], torch.Tensor]


def random_linear(name: str, outputs: int, inputs: int) -> Fp8Linear:
    """In fp8; the head in int8, which the same kernels read."""
    full = torch.randn(outputs, inputs, device="cuda", dtype=DTYPE) * 0.02
    if name != "head":
        return Fp8Linear(*quantize_weight(full))
    return Fp8Linear(*quantize_to_int8(full))


def copies_of(linear: Fp8Linear) -> list[Fp8Linear]:
    more = READ_BYTES // linear.weight.nbytes
    return [linear, *(Fp8Linear(linear.weight.clone(), linear.scales) for _ in range(more))]


def tile_of(rows: int) -> int:
    return max(16, 1 << (rows - 1).bit_length())


def forms_for(tile: int, forms: tuple[Form, ...]) -> Iterator[Form]:
    for outputs, length, warps, stages in forms:
        if stages * length * (outputs + 2 * tile) <= SHARED_BYTES and outputs * tile <= 128 * 32 * warps:
            yield outputs, length, warps, stages


def tilings(rows: int, linear: Fp8Linear, forms: tuple[Form, ...], may_cut: bool) -> Iterator[SkinnyTiling]:
    tile = tile_of(rows)
    for (outputs, length, warps, stages), parts in product(
        forms_for(tile, forms), PARTS if may_cut else (1,)
    ):
        if linear.outputs % outputs == 0 and linear.inputs % (length * parts) == 0:
            yield SkinnyTiling(tile, outputs, length, parts, warps, stages)


def of_vector(name: str, inputs: int, tiling: MatvecTiling | None) -> Product:
    """One row, with what is around this product in a step."""
    row, norm, is_gated = numbers(inputs), numbers(inputs), name == "gate_up"

    def multiply(linear: Fp8Linear) -> torch.Tensor:
        dtype = torch.float32 if name == "head" else DTYPE
        out = torch.empty(linear.outputs // (1 + is_gated), device="cuda", dtype=dtype)
        return matvec(
            row,
            linear.weight,
            out,
            scales=linear.scales,
            norm=(norm, 1e-5) if name in NORMED else None,
            residual=out if name in INTO_RESIDUAL else None,
            gated=is_gated,
            tiling=tiling,
        )

    return multiply


def of_rows(rows: torch.Tensor, is_logits: bool, tiling: SkinnyTiling) -> Product:
    def multiply(linear: Fp8Linear) -> torch.Tensor:
        out = rows.new_empty(len(rows), linear.outputs, dtype=torch.float32) if is_logits else None
        return skinny_product(rows, linear.weight, tiling, scales=linear.scales, out=out)

    return multiply


def of_quantized_rows(rows: torch.Tensor, tiling: SkinnyTiling) -> Product:
    """Both sides in fp8; a bench alone has this, so the rows' scales are applied by nobody."""

    def multiply(linear: Fp8Linear) -> torch.Tensor:
        quantized, _ = quantize_rows(rows)
        out = rows.new_empty(
            tiling.parts, len(rows), linear.outputs, dtype=DTYPE if tiling.parts == 1 else torch.float32
        )
        skinny_product(quantized, linear.weight, tiling, scales=linear.scales, out=out)
        return out[0] if tiling.parts == 1 else out

    return multiply


def by_library(rows: torch.Tensor) -> Product:
    def multiply(linear: Fp8Linear) -> torch.Tensor:
        quantized, scales = quantize_rows(rows)
        return torch._scaled_mm(
            quantized,
            linear.weight.t(),
            scale_a=scales,
            scale_b=linear.scales.view(1, -1),
            out_dtype=DTYPE,
            use_fast_accum=True,
        )

    return multiply


def with_norm(multiply: Product, rows: int, outputs: int) -> Product:
    hidden, weight = numbers(rows, outputs), numbers(outputs)
    return lambda linear: add_rms_norm(hidden, multiply(linear), weight, 1e-5)


def launch_form(form: Form, tile: int, weight: torch.dtype, rows: torch.dtype, out: torch.dtype) -> None:
    outputs, length, warps, stages = form
    skinny_product(
        numbers(tile, length).to(rows),
        numbers(outputs, length).to(weight),
        SkinnyTiling(tile, outputs, length, 1, warps, stages),
        scales=torch.ones(outputs, device="cuda"),
        out=torch.empty(tile, outputs, device="cuda", dtype=out),
    )


def launches(part: str) -> Iterator[Callable[[], object]]:
    """Each kernel once, with as little as it takes."""
    if part == "one":
        for name, (_, inputs) in (SHAPES | HEAD).items():
            linear = random_linear(name, 32, inputs)
            for tiling in VECTOR_TILINGS:
                yield partial(of_vector(name, inputs, tiling), linear)
        return
    for tile in sorted(set(map(tile_of, ROWS))):
        for form in forms_for(tile, FORMS):
            yield partial(launch_form, form, tile, torch.int8, DTYPE, torch.float32)
            for rows, out in product((DTYPE, FP8), (DTYPE, torch.float32)):
                if rows == DTYPE or form in FORMS_FROM_MEMORY:
                    yield partial(launch_form, form, tile, FP8, rows, out)


def each_us(multiply: Product, copies: list[Fp8Linear]) -> float:
    return median_us([partial(multiply, linear) for linear in copies])


def report_one(name: str, copies: list[Fp8Linear]) -> None:
    linear = copies[0]
    took = {tiling: each_us(of_vector(name, linear.inputs, tiling), copies) for tiling in VECTOR_TILINGS}
    chosen_us = each_us(of_vector(name, linear.inputs, None), copies)
    best = ", ".join(
        told(took[tiling], linear.weight.nbytes, tuple(tiling))
        for tiling in sorted(took, key=took.__getitem__)[:3]
    )
    print(f"{name:8}   1 row: now {told(chosen_us, linear.weight.nbytes)}; best {best}", flush=True)


class FewRows:
    """A number of rows against one of the shapes."""

    def __init__(self, name: str, copies: list[Fp8Linear], count: int) -> None:
        self._name = name
        self._copies = copies
        self._linear = copies[0]
        self._rows = numbers(count, self._linear.inputs)

    def us(self, multiply: Product) -> float:
        if self._name in INTO_RESIDUAL:
            multiply = with_norm(multiply, len(self._rows), self._linear.outputs)
        return each_us(multiply, self._copies)

    @cached_property
    def _exact(self) -> torch.Tensor:
        return self._rows.float() @ self._linear.dequantized().t()

    def error(self, multiply: Product) -> float:
        found = multiply(self._linear).float()
        found = found.sum(0) if found.dim() == 3 else found
        return float((found - self._exact).norm() / self._exact.norm())

    def tried(self, make: Callable[[SkinnyTiling], Product], forms: tuple[Form, ...]) -> list[SkinnyTiling]:
        """Tells the three quickest, and returns all."""
        took = {}
        for tiling in tilings(len(self._rows), self._linear, forms, self._name in INTO_RESIDUAL):
            try:
                took[tiling] = self.us(make(tiling))
            except Exception as error:
                print(f"  {tuple(tiling)}: {repr(error)[:200]}", flush=True)
        first = sorted(took, key=took.__getitem__)[:3]
        print(
            ", ".join(told(took[tiling], self._linear.weight.nbytes, tuple(tiling)) for tiling in first),
            flush=True,
        )
        return list(took)

    def report(self) -> None:
        rows, is_head = self._rows, self._name == "head"
        print(f"{self._name:8} {len(rows):3} rows: best ", end="")
        own = partial(of_rows, rows, is_head)
        worst = max(self.error(own(tiling)) for tiling in self.tried(own, FORMS))
        print(f"    error of the worst: {worst:.2%}")
        if is_head:
            full = self._linear.dequantized().to(DTYPE).t()
            us = median_us([partial(torch.mm, rows, full, out_dtype=torch.float32)])
            print(f"    library, bf16: {us:.1f}", flush=True)
            return
        self.tell("library", by_library(rows))
        if self._name in INTO_RESIDUAL:
            self.tell("now", partial(Fp8Linear.onto, hidden=rows, rows=rows))
        else:
            self.tell("now", partial(Fp8Linear.__call__, rows=rows))
        print("    rows quantised: ", end="")
        self.tried(partial(of_quantized_rows, rows), FORMS_FROM_MEMORY)

    def tell(self, what: str, multiply: Product) -> None:
        us, error = self.us(multiply), self.error(multiply)
        print(f"    {what}: {told(us, self._linear.weight.nbytes)}, error {error:.2%}", flush=True)


def main() -> None:
    torch.manual_seed(0)
    begin, parts = time.perf_counter(), sys.argv[1:] or ["one", "few"]
    compile_all(launches, parts)
    print(
        f"[compiled in {time.perf_counter() - begin:.0f} s; us, share of {BANDWIDTH_TB_PER_S} TB/s]",
        flush=True,
    )
    for part, (name, shape) in product(parts, (SHAPES | HEAD).items()):
        copies = copies_of(random_linear(name, *shape))
        if part == "one":
            report_one(name, copies)
            continue
        for count in ROWS:
            FewRows(name, copies, count).report()
    print(f"[{time.perf_counter() - begin:.0f} s]", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
