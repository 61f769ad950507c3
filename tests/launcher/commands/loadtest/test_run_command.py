from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from launcher.commands.loadtest.summary import complaints, show
from launcher.commands.main import app
from loadtest.results import LoadRun, RequestResult, Slo
from tests.fakes.openai_server import TimedApi, timed_api
from tests.pace import patience
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--shape", "wave"], "allowed: steady, ramp"),
        (["--shape", "trace"], "needs a --trace"),
        (["--trace", "nowhere.csv"], "there is no file nowhere.csv"),
        (["--duration", "30"], "--duration"),
        (["--kinds", "chats"], "--kinds has 'chats'"),
        (["--slo", "tft:1s"], "there is no 'tft'"),
        (["--check"], "--check needs an --slo"),
        (["--trace", __file__], "no column for 'at'"),
        (["--out", "/proc/nowhere"], "--out: nothing can be written to /proc/nowhere"),
        (["--url", "http://127.0.0.1:9"], "cannot be reached: [Errno 111] Connection refused; is it a rou"),
        (["--url", "somewhere"], "somewhere cannot be reached: unknown url type"),
        (["--url", "http://127.0.0.1:9", "--tenants", "nowhere.json"], "nowhere.json cannot be read"),
    ],
)
def test_unusable_options_end_the_run_with_status_2(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    ended = CliRunner().invoke(app, ["loadtest", "run", "--out", str(tmp_path), *arguments])
    assert ended.exit_code == 2
    assert problem in ended.output.replace("\n", " ")


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_at_the_end_fits_the_terminal(width: int, tmp_path: Path) -> None:
    output = io.StringIO()
    slow = RequestResult("conversation", 0.0, status=200, first_token_s=12.3, ended_s=45.6)
    show(a_run(slow), tmp_path, Console(file=output, width=width))
    lines = output.getvalue().splitlines()
    assert "12,300 ms" in lines[2]
    assert "tokens/s" in lines[1]
    assert all(len(line) <= width for line in lines[:4])
    assert ("token p50" in lines[1]) == (width == 160)


def a_run(*results: RequestResult, slo: Slo | None = None) -> LoadRun:
    return LoadRun("r", "2026-01-01T00:00:00+00:00", 1.0, list(results), slo={"standard": slo} if slo else {})


def test_a_run_is_good_when_little_failed_and_the_objective_was_kept() -> None:
    good = RequestResult("chat", 0.0, status=200, first_token_s=0.1, ended_s=0.2)
    bad = RequestResult("chat", 0.0, status=500, ended_s=0.2, error="no")
    assert complaints(a_run(good), 0.0, False) == []
    assert complaints(a_run(good, bad), 0.5, False) == []
    assert "50.0% of the requests failed" in complaints(a_run(good, bad), 0.1, False)[0]
    assert complaints(a_run(good, slo=Slo(1.0)), 0.0, True) == []
    assert "missed" in complaints(a_run(good, slo=Slo(0.05)), 0.0, True)[0]
    assert complaints(a_run(good, slo=Slo(0.05)), 0.0, False) == []
    assert complaints(a_run(), 0.0, False) == ["Nothing was answered."]


@pytest.mark.skipif(find_spec("locust") is None, reason="Locust is not installed here")
def test_ctrl_c_ends_a_run_with_a_report_of_what_was_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "launcher", "loadtest", "run", "--duration", "60s", "--users", "3"]
    command += ["--kinds", "chat=2,embeddings", "--answer-tokens", "4", "--think", "100ms"]
    command += ["--name", "cut short"]
    with timed_api(TimedApi()) as api:
        process = subprocess.Popen(
            [*command, "--url", api.url, "--out", str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        wait_until(lambda: len(api.bodies) >= 10 or process.poll() is not None, limit_s=60)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=patience(60))
    assert process.returncode == 0, said
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["name"] == "cut short"
    assert (tmp_path / "report.html").stat().st_size > 1000
    assert "Report:" in said
