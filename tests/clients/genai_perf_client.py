"""NVIDIA's GenAI-Perf, which measures with perf_analyzer."""

# /// script
# requires-python = ">=3.10,<3.13"
# dependencies = ["genai-perf==0.0.16", "perf-analyzer==2.60.0"]
#
# [tool.inflight]
# glibc = "2_38"
# ///

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.clients.uses import STACK, check, main, run, use

BRIEF = ("--request-count", "4", "--concurrency", "2", "--warmup-request-count", "1")
SHORT = ("--synthetic-input-tokens-mean", "20", "--output-tokens-mean", "8", "--tokenizer", STACK.tokenizer)


def profile(*options: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run("genai-perf", "profile", *BRIEF, "--artifact-dir", folder, *options, timeout_s=600)
        (found,) = Path(folder).rglob("profile_export_genai_perf.json")
        told = json.loads(found.read_text())
    check(told["request_count"]["avg"] == 4, told)


@use("KServe: ensemble over streamed gRPC")
def ensemble() -> None:
    options = ("-m", "ensemble", "--endpoint-type", "kserve", "--backend", "tensorrtllm")
    profile(*options, *SHORT, "--streaming", "-u", STACK.grpc)


@use("chat completions, streamed")
def chat() -> None:
    options = ("-m", STACK.model, "--endpoint-type", "chat")
    profile(*options, *SHORT, "--streaming", "-u", STACK.url)


@use("embeddings")
def embeddings() -> None:
    options = ("-m", STACK.embedder, "--endpoint-type", "embeddings")
    profile(*options, "--tokenizer", STACK.tokenizer, "-u", STACK.url)


if __name__ == "__main__":
    main()
