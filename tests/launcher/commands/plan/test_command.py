"""`inflight plan`: what is typed, and what is shown for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.commands.main import app

PROFILE = {
    "gpu": "x1",
    "model": "tiny",
    "precision": "bf16",
    "tensor_parallel": 1,
    "base_ms": 20.0,
    "prefill_token_ms": 0.3,
    "decode_sequence_ms": 1.0,
    "kv_kilotoken_ms": 0.1,
    "kv_tokens": 50_000,
    "weights_gb": 1.0,
    "most_batch": 64,
    "most_context": 2048,
    "fit_error": 0.05,
    "origin": "measured in a test",
}


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    (tmp_path / "x1.json").write_text(json.dumps([PROFILE]))
    rows = [f"{number / 4},{20 + number},{5 + number % 20}" for number in range(80)]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return ["plan", "--profiles", str(tmp_path), "--model", "tiny", "--trace", str(trace), "--price", "x1=2",
            "--rate", "20", "--no-play", "--slo", "ttft:3s"]  # fmt: skip


def test_a_plan_is_json_and_a_page_with_its_origins(given: list[str], tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    done = CliRunner().invoke(app, [*given, "--json", "--what-if", "rate", "--html", str(page)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["plan"]["gpu"] == "x1"
    assert found["plan"]["replicas"] % 3 == 0
    assert found["plan"]["dollars_per_h"] == 2 * found["plan"]["gpus"]
    assert found["what_if"][0]["times"] >= 1
    assert "measured in a test" in page.read_text()


def test_several_models_are_planned_together_each_with_its_own_peak_and_trace(
    given: list[str], tmp_path: Path
) -> None:
    (tmp_path / "more.json").write_text(json.dumps([{**PROFILE, "model": "less", "base_ms": 10.0}]))
    other = tmp_path / "other.csv"
    other.write_text("arrival_s,prompt_tokens,output_tokens\n0,9,4\n1,9,4\n2,9,4\n")
    models = ["--model", f"less=5:{other}"]
    found = json.loads(CliRunner().invoke(app, [*given, *models, "--json"]).stdout)
    tiny, less = found["models"]
    assert (tiny["model"], tiny["peak_per_s"]) == ("tiny", 20)
    assert (less["model"], less["peak_per_s"], less["prompt_tokens"]) == ("less", 5, 9)
    assert found["gpus"] == {"x1": tiny["plan"]["gpus"] + less["plan"]["gpus"]}
    assert found["dollars_per_h"] == 2 * found["gpus"]["x1"]
    page = tmp_path / "plan.html"
    shown = CliRunner().invoke(app, [*given, *models, "--html", str(page)])
    assert "all of them" in shown.stdout
    assert {"<h2>tiny</h2>", "<h2>less</h2>"} <= set(page.read_text().split("\n"))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--model", "huge"], "there are llama-70b, llama-8b, tiny"),
        (["--model", "tiny"], "--model tiny: given twice"),
        (["--model", "llama-8b=often"], "--model llama-8b"),
        (["--model", "llama-8b=0"], "--model llama-8b 0: expected numbers above 0"),
        (["--price", "abacus=1"], "--price abacus: no profile"),
        (["--precision", "fp3"], "allowed are bf16, fp8"),
        (["--survives", "war"], "allowed are nothing, replica, host, zone"),
        (["--what-if", "luck"], "allowed are rate"),
        (["--trace", "synthetic:many/few"], "--trace synthetic:many/few: expected lengths"),
        (["--trace", "synthetic:900"], "expected lengths of prompts and answers such as 900/200"),
    ],
)
def test_what_cannot_be_used_is_named_with_what_is_allowed(
    given: list[str], typed: list[str], said: str
) -> None:
    done = CliRunner().invoke(app, [*given, *typed])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
