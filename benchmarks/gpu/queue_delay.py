"""`python -m benchmarks.gpu.queue_delay`: what waiting for a batch brings where a GPU computes embeddings.

As `benchmarks.queue_delay`, with the embedding model on the GPU in bf16 and a text engine that nobody asks.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.llama_8b import write_checkpoint
from benchmarks.queue_delay import Plan, parser_of, plan_of, run

DEFAULT = Plan(objective_ms=50.0, times=(0.3, 1.0, 4.0), goal=3.0)


def main() -> None:
    asked = parser_of(__doc__, DEFAULT).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text_model = write_checkpoint(Path(folder) / "llama-8b")
        (text_model / "model.safetensors").touch()  # asked for, and not read
        is_met = run(plan_of(asked, DEFAULT.goal, "device=cuda", text_model=str(text_model)))
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
