"""`inflight simulate`: what is typed, and what is shown for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from launcher.commands.main import app
from launcher.commands.option_values import Mistake
from launcher.commands.simulate import options
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from simulator.scenario import Admission

COST = "12,0.12,0.25"
METRICS = """# TYPE inflight_engine_step_cost_seconds gauge
inflight_engine_step_cost_seconds{coefficient="base",model="tensorrt_llm",version="1"} 0.0115
inflight_engine_step_cost_seconds{coefficient="prefill_token",model="tensorrt_llm",version="1"} 0.0001
inflight_engine_step_cost_seconds{coefficient="decode_sequence",model="tensorrt_llm",version="1"} 0.0002
inflight_engine_step_cost_seconds{coefficient="kv_kilotoken",model="tensorrt_llm",version="1"} 0.00004
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [f"{number / 4},t{number % 3},{20 + number},{5 + number % 40}" for number in range(80)]
    path.write_text("\n".join(["arrival_s,tenant,prompt_tokens,output_tokens", *rows]) + "\n")
    return path


@pytest.fixture
def metrics() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()
        thread.join()


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["simulate", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


def test_every_rate_is_simulated_with_every_policy_and_shown_in_tables_and_plots(
    trace: Path, tmp_path: Path
) -> None:
    code, shown, _ = run(
        *("--trace", str(trace), "--cost", COST, "--rate", "1,20", "--policy", "objectives,first-come,cap"),
        *("--slo", "interactive=ttft:1s,itl:80ms", "--slo", "batch=ttft:30s"),
        *("--tiers", "interactive:1,batch:1", "--plots", str(tmp_path / "plots")),
    )
    assert code == 0
    assert "80 requests" in shown
    assert "goodput/s" in shown
    assert shown.count("first-come") >= 4
    written = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert len(written) == 7
    for path in (tmp_path / "plots").iterdir():
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_simulate_prints_the_same_as_json(trace: Path) -> None:
    code, shown, _ = run("--trace", str(trace), "--cost", COST, "--json")
    assert code == 0
    (figures,) = json.loads(shown)
    assert figures["offered"] == 80
    assert figures["good"] == 80
    assert [tier["tier"] for tier in figures["tiers"]] == ["standard"]


def test_a_generated_trace_needs_no_file() -> None:
    code, shown, _ = run("--trace", "synthetic", "--cost", COST, "--duration", "20s", "--max-tokens", "4096")
    assert code == 0
    assert "synthetic-0" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--cost", "12"], "allowed: a file, the address"),
        (["--cost", "12,x,1"], "as numbers"),
        (["--cost", "-1,0,1"], "must not be negative"),
        (["--slo", "interactive"], "expected TIER=ttft:1s"),
        (["--slo", "gold=ttft:1s"], "there is no tier 'gold'"),
        (["--slo", "batch=p99:1s"], "allowed: ttft (first token), itl"),
        (["--slo", "batch=ttft:soon"], "--slo batch=ttft:soon: 'soon' is not a duration; allowed"),
        (["--slo", "batch=ttft:0ms"], "0ms is out of range; allowed: 0.001ms to 168h"),
        (["--slo", "batch=ttft:2h"], "expected 0.001 to 3600 seconds"),
        (["--rate", "0"], "numbers above 0"),
        (["--policy", "lottery"], "allowed are objectives, first-come, cap"),
        (["--tiers", "gold:1"], "there is no tier 'gold'"),
        (["--tiers", "batch:-1"], "must be 0 or more"),
        (["--tenant-tier", "t1"], "expected TENANT="),
        (["--tenant-tier", "t1=gold"], "allowed: interactive, standard, batch"),
        (["--tenant-tier", "t9=batch"], "there is no tenant 't9' in the trace; there are t0, t1, t2"),
        (["--weight", "t9=2"], "there is no tenant 't9' in the trace"),
        (["--duration", "1"], "--duration: '1' is not a duration"),
        (["--tenant-tier", "t1=gold"], "there is no tier 'gold'"),
        (["--weight", "t1=heavy"], "numbers above 0"),
        (["--step-tokens", "10"], "must not be less than --places"),
        (["--trace", "gone.csv"], "gone.csv cannot be read"),
    ],
)
def test_an_unusable_option_is_reported_in_one_line(trace: Path, arguments: list[str], says: str) -> None:
    code, _, errors = run("--trace", str(trace), "--cost", COST, *arguments)
    assert code == 2
    assert says in errors
    assert errors.startswith("inflight: ")


def test_a_cost_is_read_from_numbers_files_and_a_running_engine(tmp_path: Path, metrics: str) -> None:
    path = tmp_path / "cost.json"
    path.write_text('{"base_ms": 1, "prefill_token_ms": 2, "decode_sequence_ms": 3}')
    assert options.cost("1,2,3,4") == StepCost(1, 2, 3, 4)
    assert options.cost(str(path)) == StepCost(1, 2, 3)
    path.write_text(f'{{"learned": {{"cost": {path.read_text()}, "samples": 9}}}}')
    assert options.cost(str(path)) == StepCost(1, 2, 3)
    assert options.cost(metrics) == StepCost(11.5, 0.1, 0.2, 0.04)
    assert options.cost(metrics, "tensorrt_llm") == StepCost(11.5, 0.1, 0.2, 0.04)
    with pytest.raises(Mistake, match="there are: tensorrt_llm"):
        options.cost(metrics, "other")
    with pytest.raises(Mistake, match=r"127\.0\.0\.1:9"):
        options.cost("http://127.0.0.1:9/metrics")


def test_objectives_and_policies_are_read() -> None:
    found = options.objectives(["interactive=ttft:500ms,itl:50ms", "batch=first-token:2m"])
    assert found[Tier.INTERACTIVE].first_token_s == 0.5
    assert found[Tier.INTERACTIVE].inter_token_s == 0.05
    assert found[Tier.BATCH].first_token_s == 120.0
    assert options.admissions("cap,objectives") == [Admission.CAP, Admission.OBJECTIVES]
