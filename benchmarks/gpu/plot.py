"""`python -m benchmarks.gpu.plot FIGURES.json DIRECTORY`: the engine's figures on a GPU as a plot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.gpu.throughput import POINTS
from benchmarks.plots import Plots


def main() -> None:
    figures, directory = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    best = {(row["requests"], row["prompt_tokens"]): row["tokens_per_s"] for row in figures}
    points = [point for point in POINTS if (point.requests, point.prompt_tokens) in best]
    rates = [best[point.requests, point.prompt_tokens] for point in points]
    Plots(directory).bars(
        "gpu",
        "Output tokens/s as a share of what bandwidth and arithmetic allow, Llama-3.1-8B shape, one H200",
        "share of the limit",
        [f"{point.requests} × {point.prompt_tokens}" for point in points],
        {
            "inflight": [rate / point.limit for rate, point in zip(rates, points, strict=True)],
            "vLLM 0.26.0": [point.vllm / point.limit for point in points],
        },
        goal=0.8,
    )


if __name__ == "__main__":
    main()
