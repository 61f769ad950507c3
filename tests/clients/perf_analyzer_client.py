"""NVIDIA's perf_analyzer, with no options that a Triton would not need."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["perf-analyzer==2.60.0"]
#
# [tool.inflight]
# glibc = "2_38"
# ///

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.clients.uses import STACK, check, main, run, use

BRIEF = ("--request-count", "4", "--concurrency-range", "2", "--max-threads", "2")


def measure(*options: str, rows: list[dict[str, list[object]]]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.json"
        data.write_text(json.dumps({"data": rows}))
        return run("perf_analyzer", *BRIEF, "--input-data", str(data), *options)


@use("ensemble over streamed gRPC")
def ensemble() -> None:
    rows: list[dict[str, list[object]]] = [
        {"text_input": ["The capital of France is"], "max_tokens": [8], "stream": [True]}
    ]
    shown = measure("-m", "ensemble", "-u", STACK.grpc, "-i", "grpc", "--streaming", "--async", rows=rows)
    check("Throughput" in shown and "preprocessing" in shown, shown)


@use("embeddings over gRPC and HTTP")
def embeddings() -> None:
    rows: list[dict[str, list[object]]] = [{"TEXT": ["one"]}]
    for protocol, address in (("grpc", STACK.grpc), ("http", STACK.address)):
        shown = measure("-m", "embeddings", "-u", address, "-i", protocol, rows=rows)
        check("Throughput" in shown, shown)


@use("chat completions")
def chat() -> None:
    body = {"model": STACK.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    shown = measure(
        *("-m", STACK.model, "--service-kind", "openai", "-u", STACK.url),
        *("--endpoint", "v1/chat/completions", "--async"),
        rows=[{"payload": [body]}],
    )
    check("Throughput" in shown, shown)


if __name__ == "__main__":
    main()
