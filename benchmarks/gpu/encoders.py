"""`python -m benchmarks.gpu.encoders`: embedders and a reranker in bf16 beside a reference on the same GPU.

Random weights of the shapes of all-MiniLM-L6-v2 and of Qwen3-Embedding-0.6B (with a smaller vocabulary, which
costs nothing here), the latter as a reranker too. The reference is transformers, or where that is not
installed the same layers written plainly in torch (`plain_encoders`). It does what sentence-transformers does
with token ids: sorted by length, 32 rows at a time, padded to their longest, in bf16. Each computes each case
in turn; shown is the median.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.plain_encoders import PlainBert, PlainQwen3
from benchmarks.gpu.random_decoders import write_random_embedder, write_random_reranker
from benchmarks.objectives.fixed_cost import write_random_minilm
from python_backend.embeddings.model import EmbeddingModel

Rows = list[list[int]]
Embed = Callable[[Rows], Any]
Lengths = dict[str, Callable[[int], int]]
SHORT: Lengths = {
    "12 tokens": lambda row: 12,
    "256 tokens": lambda row: 256,
    "4 to 60": lambda row: 4 + row * 37 % 57,
}
PASSAGES: Lengths = {**SHORT, "20 to 500": lambda row: 20 + row * 173 % 481}
PAIRS: Lengths = {"100 to 400": lambda row: 100 + row * 173 % 301}


@dataclass(frozen=True, slots=True)
class Contest:
    """`slack` is how much longer than the reference ours may take."""

    name: str
    write: Callable[[Path], Path]
    plain: Callable[[Path, str, torch.dtype], Any]
    in_transformers: str
    pooling: str
    lengths: Lengths
    counts: Sequence[int]
    rounds: int
    least_cosine: float
    slack: float = 1.1


_FEW, _MANY = (1, 8, 32, 128), (1, 8, 32, 128, 512)
_QWEN3 = (PlainQwen3, "Qwen3Model")
CONTESTS = (
    Contest("MiniLM", write_random_minilm, PlainBert, "BertModel", "mean", SHORT, _MANY, 20, 0.999),
    Contest("0.6B embedder", write_random_embedder, *_QWEN3, "last", PASSAGES, _FEW, 8, 0.995),
    Contest("0.6B reranker", write_random_reranker, *_QWEN3, "score", PAIRS, _FEW, 8, 0.0),
)


def rows_of(count: int, length: Callable[[int], int]) -> Rows:
    words = [[2000 + (row + place) % 9000 for place in range(length(row) - 2)] for row in range(count)]
    return [[101, *row, 102] for row in words]


class Reference:
    """Pools the states of padded batches, as sentence-transformers does."""

    def __init__(self, path: Path, contest: Contest, device: str) -> None:
        self._device = device
        self._pooling = contest.pooling
        kind = torch.bfloat16 if device == "cuda" else torch.float32
        try:
            import transformers
        except ImportError:
            self.name = "plain torch"
            self._states = contest.plain(path, device, kind)
        else:
            self.name = "transformers"
            made = getattr(transformers, contest.in_transformers)
            model: Any = made.from_pretrained(path, attn_implementation="sdpa").to(device, kind).eval()
            self._states = lambda ids, mask: model(input_ids=ids, attention_mask=mask).last_hidden_state
        if self._pooling == "score":
            from python_backend.engine.checkpoint import Checkpoint

            store = Checkpoint(path)
            score = store.tensor("score.weight", 1, store.config["hidden_size"])
            self._score = torch.from_numpy(score).to(device, kind)

    @torch.inference_mode()
    def __call__(self, rows: Rows) -> Any:
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        results: list[Any] = [None] * len(rows)
        for start in range(0, len(order), 32):
            chosen = order[start : start + 32]
            longest = max(len(rows[index]) for index in chosen)
            ids = torch.zeros((len(chosen), longest), dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for place, index in enumerate(chosen):
                ids[place, : len(rows[index])] = torch.tensor(rows[index])
                mask[place, : len(rows[index])] = 1
            ids, mask = ids.to(self._device), mask.to(self._device)
            pooled = self._pooled(self._states(ids, mask), mask).float().cpu().numpy()
            for place, index in enumerate(chosen):
                results[index] = pooled[place]
        return np.array(results)

    def _pooled(self, states: Any, mask: Any) -> Any:
        if self._pooling == "mean":
            weights = mask.unsqueeze(-1).float()
            states = (states.float() * weights).sum(1) / weights.sum(1)
        else:
            states = states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]
        if self._pooling == "score":
            return torch.sigmoid((states @ self._score.T).float())
        return torch.nn.functional.normalize(states.float())


def compare(ours: Embed, theirs: Reference, contest: Contest) -> bool:
    met = True
    contestants: tuple[Embed, Embed] = (ours, theirs)
    for name, length in contest.lengths.items():
        for count in contest.counts:
            rows = rows_of(count, length)
            took_ms: tuple[list[float], list[float]] = ([], [])
            for _ in range(contest.rounds + 2):
                for embed, took in zip(contestants, took_ms, strict=True):
                    began_s = time.perf_counter()
                    embed(rows)
                    took.append(1000 * (time.perf_counter() - began_s))
            mine, other = (median(took[2:]) for took in took_ms)
            met &= mine <= contest.slack * other
            tokens = sum(map(len, rows))
            told = f"{mine:9.2f} {other:9.2f} {other / mine:7.2f} {tokens / mine * 1000:11,.0f}"
            print(f"{contest.name:>14} {name:>10} {count:5} {told}", flush=True)
    return met


def agree(ours: Embed, theirs: Reference, contest: Contest) -> bool:
    rows = rows_of(20, next(reversed(contest.lengths.values())))
    mine, other = ours(rows), theirs(rows)
    if contest.pooling == "score":
        difference = float(np.abs(mine - other).max())
        print(f"{contest.name}: scores differ from {theirs.name}'s by at most {difference:.4f} (goal 0.03)")
        return difference < 0.03
    cosine, goal = float((mine * other).sum(1).min()), contest.least_cosine
    print(f"{contest.name}: cosine to {theirs.name} at least {cosine:.5f} (goal {goal})")
    return cosine >= goal


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.encoders")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default="", help="the contests whose names contain this")
    parser.add_argument("--rows", help="how many texts at once, in place of those of each contest: 1,8")
    parser.add_argument("--rounds", type=int, help="in place of those of each contest")
    asked = parser.parse_args()
    met = True
    print(f"{'':>14} {'lengths':>10} {'rows':>5} {'ours, ms':>9} {'other':>9} {'faster':>7} {'tokens/s':>11}")
    for contest in CONTESTS:
        if asked.only not in contest.name:
            continue
        if asked.rows:
            contest = replace(contest, counts=[int(each) for each in asked.rows.split(",")])
        contest = replace(contest, rounds=asked.rounds or contest.rounds)
        with tempfile.TemporaryDirectory() as folder:
            path = contest.write(Path(folder) / "model")
            model = EmbeddingModel.load(path, device=asked.device)
            theirs = Reference(path, contest, asked.device)
            met &= agree(model.embed, theirs, contest)
            met &= compare(model.embed, theirs, contest)
            del model, theirs
            if asked.device == "cuda":
                torch.cuda.empty_cache()
    sys.exit(0 if met else "a goal was missed")


if __name__ == "__main__":
    main()
