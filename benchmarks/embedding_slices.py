"""`python -m benchmarks.embedding_slices`: a batch of short texts, in slices as before and by thread."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.objectives.fixed_cost import write_random_minilm
from python_backend.embeddings import model as embedding
from python_backend.engine.host.cores import available_cores

TOKENS = 7
BATCHES = (1, 4, 16, 64)
TRIES = 15


def batch_ms(model: embedding.EmbeddingModel, rows: int) -> float:
    texts = [[101, *range(2000 + row, 2000 + row + TOKENS - 2), 102] for row in range(rows)]
    took_s = []
    for _ in range(TRIES):
        began_s = time.perf_counter()
        model.embed(texts)
        took_s.append(time.perf_counter() - began_s)
    return 1000 * median(took_s)


def main() -> None:
    least = embedding.LEAST_SLICE_TOKENS
    with tempfile.TemporaryDirectory() as folder:
        path = write_random_minilm(Path(folder) / "minilm")
        for threads in sorted({1, 2, max(1, available_cores() // 2)}):
            model = embedding.EmbeddingModel.load(path, threads)
            for name, tokens in (("in large slices", embedding.SLICE_TOKENS), ("by thread", least)):
                embedding.LEAST_SLICE_TOKENS = tokens
                figures = ", ".join(f"{rows}: {batch_ms(model, rows):.1f} ms" for rows in BATCHES)
                print(f"{threads} threads, {name}: {figures}")
            model.close()


if __name__ == "__main__":
    main()
