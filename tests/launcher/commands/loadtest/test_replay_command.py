"""`inflight loadtest replay`: what is typed, what is sent for it, and what is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launcher.commands.main import app
from tests.fakes.completions_server import CompletionsServer, serving_aside


@pytest.fixture
def server() -> Iterator[CompletionsServer]:
    with serving_aside(CompletionsServer(first_s=0.005, gap_s=0.001, context_tokens=64)) as running:
        yield running


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.csv"
    rows = [
        f"{number / 20},t{number % 3},{20 + 50 * (number == 3)},{4 + number % 20}" for number in range(10)
    ]
    path.write_text("\n".join(["arrival_s,tenant,prompt_tokens,output_tokens", *rows]) + "\n")
    return path


def run(*arguments: object, **environment: str) -> tuple[int, str, str]:
    words = ["loadtest", *map(str, arguments)]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200", "INFLIGHT_API_KEY": "", **environment})
    return result.exit_code, result.stdout, result.stderr


def written(directory: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return read


def test_a_trace_is_replayed_and_becomes_a_report(
    server: CompletionsServer, trace: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ["--url", server.url, "--slo", "standard=ttft:30s,itl:10s,e2e:60s", "--rate", 2, "--out", out]
    code, stdout, stderr = run("replay", "--trace", trace, *options, "--check", INFLIGHT_API_KEY="secret")
    assert (code, stderr) == (0, "")
    assert "small: 10 requests in 0 s to tiny" in stdout
    assert "10 good, 0 late, 0 failed, 0 gave up, 0 refusals" in stdout
    assert (out / "report.html").is_file()
    data = written(out)
    assert data["summary"]["figures"]["good"] == 10
    assert data["clamped"] == 1
    assert data["planned"] == 10
    assert data["slo"]["standard"] == {"first_token_s": 30.0, "between_tokens_s": 10.0, "ended_s": 60.0}
    assert set(data["summary"]["tenants"]) == {"t0", "t1", "t2"}
    assert set(server.keys) == {"Bearer secret"}
    assert sorted(len(body["prompt"]) for body in server.bodies) == [20] * 9 + [63]
    assert max(body["max_tokens"] for body in server.bodies if len(body["prompt"]) == 20) == 13


def test_missed_objectives_set_the_exit_status(
    server: CompletionsServer, trace: Path, tmp_path: Path
) -> None:
    options = ["--url", server.url, "--slo", "standard=ttft:1us", "--first", 3, "--out", tmp_path]
    code, stdout, _ = run("replay", "--trace", trace, *options, "--check")
    assert code == 1
    assert "Objectives missed: 0.0% of standard requests were good" in stdout


def test_tenants_and_tiers_come_from_the_file_and_a_trace_repeats_for_the_duration(
    server: CompletionsServer, trace: Path, tmp_path: Path
) -> None:
    people = tmp_path / "tenants.json"
    people.write_text(
        json.dumps([{"name": "t0", "key": "k0", "tier": "batch"}, {"name": "acme", "key": "k1"}])
    )
    options = [
        "--url",
        server.url,
        "--tenants",
        people,
        "--duration",
        "1s",
        "--clients",
        2,
        "--out",
        tmp_path,
    ]
    assert run("replay", "--trace", trace, *options)[0] == 0
    seen = {(key, body["service_tier"]) for key, body in zip(server.keys, server.bodies, strict=True)}
    assert seen == {("Bearer k0", "flex"), ("Bearer k1", "default")}
    assert set(written(tmp_path)["summary"]["tenants"]) == {"t0", "acme"}
    assert len(server.bodies) > 15


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rate", "0"], "a rate factor must be above 0, got 0"),
        (["--duration", "long"], "--duration: 'long' is not a duration"),
        (["--slo", "gold=ttft:1s"], "there is no tier 'gold'"),
        (["--slo", "batch=speed:1s"], "there is no 'speed'; allowed: ttft (first token)"),
        (["--slo", "batch"], "expected TIER=ttft:1s,itl:60ms,e2e:20s"),
        (["--tiers", "gold:1"], "there is no tier 'gold'"),
        (["--tenants", "no-such-file"], "no-such-file cannot be read"),
        (["--model", "other"], "there is no model 'other'; there are: tiny"),
        (["--url", "http://127.0.0.1:9"], "does not list its models"),
        (["--out", "/proc/nowhere"], "--out: nothing can be written to /proc/nowhere"),
    ],
)
def test_unusable_options_are_refused_before_anything_is_sent(
    server: CompletionsServer, trace: Path, tmp_path: Path, options: list[str], says: str
) -> None:
    base = ["--url", server.url, "--out", tmp_path / "out"]
    code, _, stderr = run("replay", "--trace", trace, *base, *options)
    assert code == 2
    assert says in stderr
    assert not server.bodies
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_a_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    code, _, stderr = run("replay", "--trace", path)
    assert code == 2
    assert "no column for 'at'" in stderr


def test_a_replay_without_answers_sets_the_exit_status(trace: Path, tmp_path: Path) -> None:
    with serving_aside(CompletionsServer(context_tokens=64, path="/elsewhere")) as server:
        code, stdout, _ = run(
            "replay", "--trace", trace, "--url", server.url, "--first", 2, "--out", tmp_path
        )
    assert code == 1
    assert "No request was answered." in stdout
    assert written(tmp_path)["summary"]["errors"][0]["status"] == 404


@pytest.mark.parametrize("command", ["replay", "report", "compare"])
def test_documented_replay_options_are_those_of_the_command(command: str) -> None:
    page = (Path(__file__).parents[4] / "docs" / "loadtest.md").read_text()
    shown = re.findall(rf"^inflight loadtest {command} ((?:.*\\\n)*.*)", page, re.MULTILINE)
    assert shown
    known = set(re.findall(r"--[a-z][a-z-]+", run(command, "--help")[1]))
    assert set(re.findall(r"--[a-z][a-z-]+", " ".join(shown))) <= known
    if command == "replay":
        section = page.split("## Replay a trace\n")[1].split("\n## ")[0]
        assert set(re.findall(r"`(--[a-z][a-z-]+)", section)) <= known
