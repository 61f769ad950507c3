"""Traffic for a plan: lengths that are told, and what was recorded."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
import typer

from launcher.commands.installation import open_installation
from launcher.commands.plan.traffic import trace_named
from router.tenants.rbac import SYSTEM
from tests.router.control.whatif.test_recorded_traffic import keep_usage


def test_generated_requests_have_the_lengths_that_are_told() -> None:
    trace = trace_named("synthetic:900~0.5/60", 0, None, None)
    assert statistics.median(each.prompt_tokens for each in trace.requests) == pytest.approx(900, rel=0.1)
    assert statistics.median(each.output_tokens for each in trace.requests) == pytest.approx(60, rel=0.1)
    logs = [each.prompt_tokens / 900 for each in trace.requests]
    assert sum(1 / 1.65 < each < 1.65 for each in logs) / len(logs) == pytest.approx(0.68, abs=0.05)


def test_a_recorded_hour_is_the_busiest_of_the_last_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = time.time()
    with open_installation(tmp_path, None) as installation:
        tenant = installation.administration.create_organisation(SYSTEM, "acme").id
        keep_usage(installation.store, tenant, now_s - 60, now_s - 5 * 3600 - 90, now_s - 5 * 3600 - 30)
    trace = trace_named("recorded:tiny", 0, tmp_path, None)
    assert [each.at_s for each in trace.requests] == pytest.approx([0, 60])
    assert {(each.prompt_tokens, each.output_tokens, each.tenant) for each in trace.requests} == {
        (7, 5, tenant)
    }
    with pytest.raises(typer.Exit) as refused:
        trace_named("recorded:another", 0, tmp_path, None)
    assert refused.value.exit_code == 2
    assert "no requests to it were recorded in the last 24 hours" in capsys.readouterr().err
