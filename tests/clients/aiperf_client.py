"""NVIDIA's AIPerf, the successor of GenAI-Perf."""

# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["aiperf==0.13.0"]
# ///

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.clients.uses import STACK, check, main, run, use

BRIEF = ("--request-count", "4", "--concurrency", "2", "--ui-type", "none", "--tokenizer", STACK.tokenizer)


def profile(*options: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(
            "aiperf", "profile", "--url", STACK.url, *BRIEF, *options, "--artifact-dir", folder, timeout_s=600
        )
        (found,) = Path(folder).rglob("profile_export_aiperf.json")
        told = json.loads(found.read_text())
    check(told["request_count"]["avg"] == 4 and not told.get("error_summary"), told)


@use("chat completions, streamed")
def chat() -> None:
    short = ("--synthetic-input-tokens-mean", "20", "--output-tokens-mean", "8")
    profile("--model", STACK.model, "--endpoint-type", "chat", "--streaming", *short)


@use("embeddings")
def embeddings() -> None:
    profile("--model", STACK.embedder, "--endpoint-type", "embeddings")


if __name__ == "__main__":
    main()
