from __future__ import annotations

import io

from rich.console import Console

from launcher.commands.loadtest.progress_line import ProgressLine, Pulse
from loadtest.results import RequestResult


def answered(at_s: float, first_token_s: float, tokens: int) -> RequestResult:
    return RequestResult(
        "chat", at_s, status=200, first_token_s=first_token_s, ended_s=1.0, completion_tokens=tokens
    )


def test_a_progress_line_covers_the_last_seconds() -> None:
    pulse = Pulse()
    pulse.take([answered(1, 0.9, 1000), answered(20, 0.1, 50), answered(21, 0.2, 50)])
    line = pulse.line(25, 8)
    assert "8 users" in line
    assert "0.2 requests/s" in line
    assert "first token p95 200 ms" in line
    assert "10 tokens/s" in line


def test_refusals_and_failures_count_from_the_start() -> None:
    pulse = Pulse()
    pulse.take([RequestResult("chat", 0, status=429, retry_after_s=1, error="x", ended_s=0.1)])
    pulse.take([RequestResult("chat", 0, status=500, error="x", ended_s=0.1)])
    assert "1 refused · 1 failed" in pulse.line(100, 1)


def test_without_a_terminal_a_progress_line_comes_now_and_then() -> None:
    output = io.StringIO()
    watching = ProgressLine(Console(file=output, width=200))
    with watching.shown():
        for _ in range(5):
            watching.show("12 users")
    assert output.getvalue() == "12 users\n"
