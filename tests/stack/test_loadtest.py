"""A short load test with users of every kind, against the real thing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from loadtest.results import LoadRun, RequestResult

if TYPE_CHECKING:
    from benchmarks.stack import RunningStack

pytestmark = pytest.mark.skipif(find_spec("locust") is None, reason="Locust is not installed here")
KINDS = {"chat": 2, "completions": 1, "embeddings": 1, "triton": 2, "conversation": 1}
OF_TOKENS = KINDS.keys() - {"embeddings"}


@dataclass
class Ran:
    said: str
    run: LoadRun
    rows: dict[str, dict[str, Any]]  # of Locust's statistics, by name


@pytest.fixture(scope="module")
def ran(stack: RunningStack, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    from loadtest.report import load_run  # with what draws its plots

    folder = tmp_path_factory.mktemp("loadtest")
    command = [sys.executable, "-m", "launcher", "loadtest", "run", "--url", stack.url, "--out", str(folder)]
    command += ["--grpc-address", stack.grpc_url, "--triton-metrics", stack.triton_metrics_url]
    command += ["--users", str(sum(KINDS.values())), "--duration", "6s", "--think", "100ms"]
    command += ["--kinds", ",".join(f"{kind}={weight}" for kind, weight in KINDS.items())]
    command += ["--prompt-tokens", "24", "--answer-tokens", "10", "--longest-tokens", "40"]
    command += ["--slo", "ttft:60s", "--check", "--fail-ratio", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = {row["name"]: row for row in json.loads((folder / "locust.json").read_text())}
    return Ran(ended.stdout, load_run(folder / "results.json"), rows)


def of_kind(ran: Ran, kind: str) -> list[RequestResult]:
    return [each for each in ran.run.results if each.kind == kind]


def test_users_of_every_kind_are_answered_and_nothing_fails(ran: Ran) -> None:
    for kind in KINDS:
        assert any(each.is_answered for each in of_kind(ran, kind)), kind
    assert not [each.error for each in ran.run.results if each.has_failed]
    assert sum(row["num_failures"] for row in ran.rows.values()) == 0


def test_tokens_have_their_times_in_the_results_and_in_locusts_statistics(ran: Ran) -> None:
    for kind in OF_TOKENS:
        answered = [each for each in of_kind(ran, kind) if each.is_answered]
        assert all(each.first_token_s for each in answered), kind
        assert any(each.gaps_s for each in answered), kind
        assert ran.rows[f"{kind}: first token"]["num_requests"] == len(answered)
        assert ran.rows[f"{kind}: between tokens"]["num_requests"] > 0
        assert sum(each.completion_tokens for each in answered) > 0


def test_grpc_users_do_not_wait_for_one_another(ran: Ran) -> None:
    """One blocking call of gRPC's would stop every user of the process."""
    streams = sorted(of_kind(ran, "triton"), key=lambda each: each.at_s)
    others = [each for each in ran.run.results if each.kind in OF_TOKENS - {"triton"}]

    def overlap(one: RequestResult, other: RequestResult) -> bool:
        assert one.ended_s is not None
        return one.first_token_s is not None and one.at_s < other.at_s < one.at_s + one.ended_s

    assert any(overlap(one, other) for one in streams for other in streams if other is not one)
    assert any(overlap(one, other) for one in streams for other in others)


def test_the_servers_own_metrics_are_in_the_results(ran: Ran) -> None:
    assert ran.run.samples
    assert any(sample.running for sample in ran.run.samples)
    assert any(sample.kv_used_ratio is not None for sample in ran.run.samples)
    assert all(sample.tokens_by_tenant for sample in ran.run.samples[1:])
    assert ran.run.about["cores"]
    assert "Report:" in ran.said
