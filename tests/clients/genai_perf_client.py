"""NVIDIA's GenAI-Perf, which measures with perf_analyzer."""

# /// script
# requires-python = ">=3.10,<3.13"
# dependencies = ["genai-perf==0.0.16", "perf-analyzer==2.60.0"]
#
# [tool.inflight]
# glibc = "2_38"
# ///

from __future__ import annotations

import tempfile

from tests.clients.uses import STACK, check, main, run, use

BRIEF = ("--request-count", "4", "--concurrency", "2", "--warmup-request-count", "1")
SHORT = ("--synthetic-input-tokens-mean", "20", "--output-tokens-mean", "8", "--tokenizer", STACK.tokenizer)


def profile(*options: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shown = run("genai-perf", "profile", *BRIEF, "--artifact-dir", folder, *options, timeout_s=600)
        check("Request Throughput" in shown.replace("\n", " "), shown)


@use("KServe: ensemble over streamed gRPC")
def ensemble() -> None:
    options = ("-m", "ensemble", "--service-kind", "triton", "--backend", "tensorrtllm")
    profile(*options, *SHORT, "--streaming", "-u", STACK.grpc)


@use("chat completions, streamed")
def chat() -> None:
    options = ("-m", STACK.model, "--service-kind", "openai", "--endpoint-type", "chat")
    profile(*options, *SHORT, "--streaming", "-u", STACK.url)


@use("embeddings")
def embeddings() -> None:
    options = ("-m", STACK.embedder, "--service-kind", "openai", "--endpoint-type", "embeddings")
    profile(*options, "--tokenizer", STACK.tokenizer, "-u", STACK.url)


if __name__ == "__main__":
    main()
