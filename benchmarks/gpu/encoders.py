"""`python -m benchmarks.gpu.encoders`: our encoder in bf16 beside transformers' on the same GPU.

Random weights of all-MiniLM-L6-v2's shape. The reference does what sentence-transformers does with token ids:
sorted by length, 32 rows at a time, padded to their longest, in bf16. Each computes each case in turn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.objectives.fixed_cost import write_random_minilm
from python_backend.embeddings.model import EmbeddingModel

Rows = list[list[int]]
Embed = Callable[[Rows], Any]
ROWS = (1, 8, 32, 128, 512)
LENGTHS: dict[str, Callable[[int], int]] = {
    "12 tokens": lambda row: 12,
    "256 tokens": lambda row: 256,
    "4 to 60": lambda row: 4 + row * 37 % 57,
}
LEAST_COSINE = 0.999


def rows_of(count: int, length: Callable[[int], int]) -> Rows:
    words = [[2000 + (row + place) % 9000 for place in range(length(row) - 2)] for row in range(count)]
    return [[101, *row, 102] for row in words]


def with_transformers(path: Path, device: str) -> Embed:
    from transformers import BertModel

    kind = torch.bfloat16 if device == "cuda" else torch.float32
    bert: Any = BertModel.from_pretrained(path, attn_implementation="sdpa").to(device, kind).eval()

    @torch.inference_mode()
    def embed(rows: Rows) -> Any:
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        vectors = np.empty((len(rows), bert.config.hidden_size), np.float32)
        for start in range(0, len(order), 32):
            chosen = order[start : start + 32]
            longest = max(len(rows[index]) for index in chosen)
            ids = torch.zeros((len(chosen), longest), dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for place, index in enumerate(chosen):
                ids[place, : len(rows[index])] = torch.tensor(rows[index])
                mask[place, : len(rows[index])] = 1
            ids, mask = ids.to(device), mask.to(device)
            states = bert(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            weights = mask.unsqueeze(-1).float()
            pooled = (states * weights).sum(1) / weights.sum(1)
            vectors[chosen] = torch.nn.functional.normalize(pooled).cpu().numpy()
        return vectors

    return embed


def compare(ours: Embed, theirs: Embed, rounds: int, counts: Sequence[int]) -> bool:
    met = True
    for name, length in LENGTHS.items():
        for count in counts:
            rows = rows_of(count, length)
            took_ms: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds + 2):
                for embed, took in zip((ours, theirs), took_ms, strict=True):
                    began_s = time.perf_counter()
                    embed(rows)
                    took.append(1000 * (time.perf_counter() - began_s))
            mine, other = (median(took[2:]) for took in took_ms)
            met &= mine <= 1.1 * other
            told = f"ours {mine:8.2f} ms, transformers {other:8.2f} ms, {other / mine:.2f}"
            print(f"{name:>10} {count:4} rows: {told}", flush=True)
    return met


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.encoders")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_random_minilm(Path(folder) / "minilm")
        model = EmbeddingModel.load(path, device=asked.device)
        theirs = with_transformers(path, asked.device)
        rows = rows_of(20, LENGTHS["4 to 60"])
        cosine = float((model.embed(rows) * theirs(rows)).sum(1).min())
        print(f"cosine to transformers at least {cosine:.5f} (goal {LEAST_COSINE})")
        met = compare(model.embed, theirs, asked.rounds, [int(each) for each in asked.rows.split(",")])
    sys.exit(0 if met and cosine >= LEAST_COSINE else "a goal was missed")


if __name__ == "__main__":
    main()
