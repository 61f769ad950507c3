"""`python -m benchmarks.gpu.attention`: paged attention of the 8B shape on the GPU, in several tilings."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from python_backend.engine.cuda.kernels.decode_attention import (
    MAX_PARTS,
    DecodeTiling,
    Workspace,
    decode_attention,
    decode_tiling,
    decode_work,
    most_work,
    wanted_parts,
)
from python_backend.engine.cuda.kernels.prefill_attention import (
    PrefillTiling,
    PrefillWorkspace,
    prefill_attention,
    prefill_tiles,
)

Numbers = NDArray[np.int32]

KV_DTYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SCALE = 1 / math.sqrt(HEAD_DIM)
DEVICE = "cuda"
BANDWIDTH_TB_PER_S = 4.18
# Two layers of the biggest shape; of smaller ones it holds more, so that the L2 cache keeps none of them.
CACHED_TOKENS = 1_100_000
MOST_LAYERS = 48

DECODE_SHAPES = ((1, 768), (32, 768), (32, 4224), (128, 768), (128, 4224), (256, 768), (512, 768))
# (tokens_per_block, tiling)
DECODE_CONFIGURATIONS = (
    (64, DecodeTiling(64, 4, 2)),
    (64, DecodeTiling(64, 4, 3)),
    (64, DecodeTiling(64, 4, 4)),
    (64, DecodeTiling(64, 4, 5)),
    (64, DecodeTiling(64, 8, 3)),
    (64, DecodeTiling(32, 2, 4)),
    (64, DecodeTiling(32, 4, 4)),
    (128, DecodeTiling(128, 4, 2)),
    (128, DecodeTiling(128, 4, 3)),
    (128, DecodeTiling(128, 8, 3)),
    (32, DecodeTiling(64, 4, 3)),
    (16, DecodeTiling(64, 4, 3)),
)
SPLITS_FOR_FEW_ROWS = {1: (8, 16, 32), 32: (1, 2, 4)}
# Rows whose contexts differ as those of chats do; the longest part of each list that is tried, in tokens.
MIXED_ROWS = (16, 24, 32, 48, 56, 64, 96, 128)
LONGEST_PARTS = (256, 384, 512, 768, 1024, 1536, 8192)

PREFILL_SHAPES = ((16, 512), (4, 4096), (1, 8192))
PREFILL_CONFIGURATIONS = (
    (128, PrefillTiling(128, 128, 8, 2)),
    (128, PrefillTiling(128, 64, 8, 3)),
    (64, PrefillTiling(128, 64, 8, 3)),
    (64, PrefillTiling(128, 64, 4, 2)),
    (64, PrefillTiling(64, 64, 4, 3)),
    (128, PrefillTiling(64, 128, 4, 2)),
    (64, PrefillTiling(128, 64, 8, 3, copies_tiles=False)),
    (16, PrefillTiling(128, 64, 8, 3)),
)
TORCH_BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True)
class Pool:
    """Random keys and values of so many tokens; tables point into them in no order."""

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def random(cls, dtype: torch.dtype) -> Pool:
        shape = (CACHED_TOKENS // 128 * 128 * KV_HEADS, HEAD_DIM)
        return cls(*(torch.randn(shape, device=DEVICE, dtype=torch.bfloat16).to(dtype) for _ in range(2)))

    def blocks(self, tokens_per_block: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (-1, KV_HEADS, tokens_per_block, HEAD_DIM)
        return self.keys.view(shape), self.values.view(shape)

    def tables(self, layers: int, rows: int, tokens: int, tokens_per_block: int) -> torch.Tensor:
        per_row = -(-tokens // tokens_per_block)
        wanted = layers * rows * per_row
        order = torch.randperm(CACHED_TOKENS // 128 * 128 // tokens_per_block, device=DEVICE)[:wanted]
        return order.to(torch.int32).view(layers, rows, per_row)


def dense(cache: torch.Tensor, table: torch.Tensor, tokens: int) -> torch.Tensor:
    """(rows, kv_heads, tokens, head_dim) of the sequences in a table, in bf16."""
    blocks = cache.view(torch.uint8)[table.long()].view(cache.dtype).to(torch.bfloat16)
    return blocks.permute(0, 2, 1, 3, 4).flatten(2, 3)[:, :, :tokens]


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.float() - expected.float()).abs().max() / expected.float().abs().max()).item()


def graph_s(work: Callable[[], None], repeats: int = 7) -> float:
    """Median time of the work as a replayed graph: what is launched takes no time of the host."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    event: Any = torch.cuda.Event  # torch declares no types for it
    times: list[float] = []
    for _ in range(repeats):
        begin, end = (event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return sorted(times)[len(times) // 2]


def even_work(lengths: Numbers, splits: int) -> Numbers:
    parts = [(row, part, splits) for row in range(len(lengths)) for part in range(splits)]
    return np.array(parts, np.int32)


def cut_work(lengths: Numbers, longest: int) -> Numbers:
    """Parts of no more than so many tokens, row after row."""
    parts = np.clip(-(-lengths // longest), 1, MAX_PARTS)
    return np.array([(row, part, n) for row, n in enumerate(parts) for part in range(n)], np.int32)


def contexts(rows: int) -> Numbers:
    """Of requests like those of `benchmarks.gpu.steady`, each somewhere in its answer."""
    dice = np.random.default_rng(rows)
    prompts = np.clip(dice.lognormal(5.8, 0.9, rows), 8, 4000)
    answers = np.clip(dice.lognormal(4.8, 0.8, rows), 4, 800) * dice.uniform(0, 1, rows)
    return np.asarray(prompts + answers + 1, np.int32)


def measure_decode(
    pool: Pool, lengths: Numbers, tokens_per_block: int, tiling: DecodeTiling, parts: Numbers
) -> str:
    rows, context = len(lengths), int(lengths.max())
    layers = min(MOST_LAYERS, CACHED_TOKENS // (rows * (context + tokens_per_block)))
    keys, values = pool.blocks(tokens_per_block)
    tables = pool.tables(layers, rows, context, tokens_per_block)
    fused = torch.randn(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
    queries = fused[:, : HEADS * HEAD_DIM].view(rows, HEADS, HEAD_DIM)
    out = torch.empty(rows, HEADS * HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
    slots = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    positions, work = (torch.from_numpy(array).to(DEVICE) for array in (lengths - 1, parts))
    workspace = Workspace(len(parts), HEADS, KV_HEADS, HEAD_DIM, torch.device(DEVICE))

    def attend(table: torch.Tensor) -> None:
        decode_attention(
            out,
            queries,
            keys,
            values,
            table,
            slots,
            positions,
            work,
            workspace,
            SCALE,
            None,
            None,
            tiling,
        )

    def attend_all() -> None:
        for table in tables:
            attend(table)

    attend(tables[0])
    error = 0.0
    for row in range(min(rows, 4)):
        expected = scaled_dot_product_attention(
            queries[row : row + 1, :, None].float(),
            dense(keys, tables[0, row : row + 1], int(lengths[row])).float(),
            dense(values, tables[0, row : row + 1], int(lengths[row])).float(),
            scale=SCALE,
            enable_gqa=True,
        )
        error = max(error, relative_error(out[row], expected.reshape(-1)))
    seconds = graph_s(attend_all) / layers
    gb_per_s = int(lengths.sum()) * KV_HEADS * HEAD_DIM * 2 * keys.itemsize / seconds / 1e9
    share = gb_per_s / BANDWIDTH_TB_PER_S / 1000
    return f"{seconds * 1e6:8.1f} us {gb_per_s:6.0f} GB/s {share:5.1%}  error {error:.1e}"


def measure_prefill(
    pool: Pool, sequences: int, tokens: int, tokens_per_block: int, tiling: PrefillTiling
) -> str:
    keys, values = pool.blocks(tokens_per_block)
    table = pool.tables(1, sequences, tokens, tokens_per_block)[0]
    rows = sequences * tokens
    fused = torch.randn(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
    queries = fused[:, : HEADS * HEAD_DIM].view(rows, HEADS, HEAD_DIM)
    out = torch.empty(rows, HEADS * HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
    starts = np.zeros(sequences, np.int32)
    counts = np.full(sequences, tokens, np.int32)
    tiles = prefill_tiles(starts, counts, HEADS // KV_HEADS, tiling, KV_HEADS)
    arguments = (
        torch.arange(sequences, dtype=torch.int32, device=DEVICE),
        torch.arange(0, rows + 1, tokens, dtype=torch.int32, device=DEVICE),
        torch.from_numpy(starts).to(DEVICE),
        torch.from_numpy(tiles).to(DEVICE),
        PrefillWorkspace(HEADS, KV_HEADS, HEAD_DIM, torch.bfloat16, torch.device(DEVICE)),
    )

    def attend() -> None:
        prefill_attention(out, queries, keys, values, table, *arguments, SCALE, None, None, tiling)

    attend()
    expected = scaled_dot_product_attention(
        queries[:tokens].transpose(0, 1)[None],
        dense(keys, table[:1], tokens),
        dense(values, table[:1], tokens),
        is_causal=True,
        scale=SCALE,
        enable_gqa=True,
    )
    error = relative_error(out[:tokens], expected[0].transpose(0, 1).reshape(tokens, -1))
    return f"{speed(attend, sequences, tokens)}  error {error:.1e}"


def measure_torch(sequences: int, tokens: int, backend: SDPBackend) -> str:
    query, key, value = (
        torch.randn(sequences, heads, tokens, HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )

    def attend() -> None:
        scaled_dot_product_attention(query, key, value, is_causal=True, scale=SCALE, enable_gqa=True)

    with sdpa_kernel(backend):
        return speed(attend, sequences, tokens)


def speed(attend: Callable[[], None], sequences: int, tokens: int) -> str:
    milliseconds = triton.testing.do_bench(attend, warmup=10, rep=40, return_mode="median")
    flops = 4 * HEAD_DIM * HEADS * sequences * tokens * (tokens + 1) / 2
    return f"{milliseconds * 1000:8.1f} us {flops / milliseconds / 1e9:6.0f} TFLOP/s"


def report(label: str, measure: Callable[[], str]) -> None:
    """A configuration that fails is a line like the others."""
    try:
        found = measure()
    except Exception as error:
        found = f"failed: {type(error).__name__} {str(error)[:160]}"
    print(f"{label:72} {found}", flush=True)


def decode(pool: Pool) -> None:
    for rows, context in DECODE_SHAPES:
        splits_to_try: Iterable[int] = SPLITS_FOR_FEW_ROWS.get(rows, (wanted_parts(KV_HEADS) // rows,))
        for splits in sorted({max(1, min(splits, MAX_PARTS)) for splits in splits_to_try}):
            for size, tiling in DECODE_CONFIGURATIONS:
                label = f"decode {rows}x{context} block {size} splits {splits} {tuple(tiling)}"
                lengths = np.full(rows, context, np.int32)
                work = even_work(lengths, splits)
                report(label, partial(measure_decode, pool, lengths, size, tiling, work))


def mixed(pool: Pool) -> None:
    for rows in MIXED_ROWS:
        lengths = contexts(rows)
        chosen = decode_work(lengths - 1, KV_HEADS, most_work(rows, KV_HEADS))
        cut = {f"up to {longest}": cut_work(lengths, longest) for longest in LONGEST_PARTS}
        for name, work in {"as chosen": chosen, **cut}.items():
            size, tiling = 64, decode_tiling(HEAD_DIM, torch.bfloat16)
            label = f"decode {rows} rows of {lengths.min()} to {lengths.max()}, parts {name}"
            report(label, partial(measure_decode, pool, lengths, size, tiling, work))


def prefill(pool: Pool) -> None:
    for sequences, tokens in PREFILL_SHAPES:
        for name, backend in TORCH_BACKENDS.items():
            report(
                f"prefill {sequences}x{tokens} torch {name}",
                lambda: measure_torch(sequences, tokens, backend),  # noqa: B023
            )
        for size, tiling in PREFILL_CONFIGURATIONS:
            report(
                f"prefill {sequences}x{tokens} block {size} {tuple(tiling)}",
                lambda: measure_prefill(pool, sequences, tokens, size, tiling),  # noqa: B023
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=("decode", "mixed", "prefill"))
    parser.add_argument("--kv", default="bf16", choices=KV_DTYPES, help="keys and values")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    pool = Pool.random(KV_DTYPES[arguments.kv])
    for part in arguments.parts:
        begin = time.perf_counter()
        {"decode": decode, "mixed": mixed, "prefill": prefill}[part](pool)
        print(f"[{part} {time.perf_counter() - begin:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
