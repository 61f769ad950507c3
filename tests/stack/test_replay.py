"""A short trace on the real stack: its lengths, its shared beginnings, the server's figures, the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.stack import RunningStack
from launcher.commands.main import app

pytestmark = pytest.mark.stack

REQUESTS, PROMPT_TOKENS, SHARED_TOKENS = 20, 540, 512
BLOCK_TOKENS = 64  # of the engine, at most


def written_trace(path: Path) -> Path:
    """As Mooncake's: two prompts begin with the same block of 512 tokens."""
    rows = [
        {"timestamp": 40 * number, "input_length": 8 + number, "output_length": 2 + number % 3}
        for number in range(REQUESTS - 2)
    ]
    shared = {"input_length": PROMPT_TOKENS, "output_length": 2, "hash_ids": [7]}
    alike = [{"timestamp": at_ms, **shared} for at_ms in (0, 1600)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in (*rows, *alike)))
    return path


def test_a_trace_is_replayed_and_its_shared_prefixes_are_computed_once(
    stack: RunningStack, tmp_path: Path
) -> None:
    trace = written_trace(tmp_path / "trace.jsonl")
    options = ["--url", stack.url, "--triton-metrics", stack.triton_metrics_url, "--out", str(tmp_path)]
    options += ["--slo", "standard=ttft:300s", "--tiers", "standard:1", "--check"]
    done = CliRunner().invoke(app, ["loadtest", "replay", "--trace", str(trace), *options])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "report.html").stat().st_size > 50_000
    data = json.loads((tmp_path / "results.json").read_text())
    figures = data["summary"]["figures"]
    assert (figures["offered"], figures["good"]) == (REQUESTS, REQUESTS)
    assert figures["completion_tokens"] == sum(2 + number % 3 for number in range(REQUESTS - 2)) + 4
    assert data["clamped"] == 0
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["requests"]]
    assert all(row["request_id"] for row in rows)
    cached = [row["cached_tokens"] for row in rows if row["prompt_tokens"] == PROMPT_TOKENS]
    assert cached[0] == 0
    assert cached[1] >= SHARED_TOKENS - BLOCK_TOKENS
    assert sum(row["cached_tokens"] for row in rows) == cached[1]
    samples = data["samples"]
    assert samples
    assert samples[-1]["running"] is not None
    assert samples[-1]["stage_seconds"]
