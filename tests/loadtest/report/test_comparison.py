"""Differences are told from noise, and noise is called so."""

from __future__ import annotations

import pytest

from loadtest.report.comparison import BETTER, NOISE, TOO_FEW, WORSE, Comparison, comparison_of
from loadtest.results import LoadRun
from tests.loadtest.report.made_runs import BEGAN_AT, answered, busy_run


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {row.metric: row.verdict for row in comparison.rows}


def test_a_run_does_not_differ_from_itself() -> None:
    run = busy_run()
    found = comparison_of(run, run)
    assert set(verdicts(found).values()) == {NOISE}
    assert found.verdict == "No difference beyond noise."
    assert all(row.change in (0, None) for row in found.rows)


@pytest.mark.parametrize("seed", [2, 3])
def test_chance_alone_is_reported_as_noise(seed: int) -> None:
    """Two runs of the same server; of 15 rows at 99 % one may be wrong now and then."""
    found = verdicts(comparison_of(busy_run(1), busy_run(seed)))
    assert sum(verdict != NOISE for verdict in found.values()) <= 1


def test_a_slower_run_is_worse_and_the_other_way_round_better() -> None:
    slow, usual = busy_run(1, slower=1.5), busy_run(2)
    worse, better = comparison_of(usual, slow), comparison_of(slow, usual)
    for metric in ("first token p50", "inter-token p50", "inter-token p95", "end to end p50"):
        assert (verdicts(worse)[metric], verdicts(better)[metric]) == (WORSE, BETTER)
    assert worse.verdict.startswith("The second run is worse in ")
    first = next(row for row in worse.rows if row.metric == "inter-token p50")
    assert first.change == pytest.approx(0.5, abs=0.1)
    assert first.low is not None
    assert first.high is not None
    assert 0 < first.low < first.high


def test_too_few_requests_give_no_verdict() -> None:
    few = LoadRun("few", BEGAN_AT, 1.0, [answered()])
    found = comparison_of(few, busy_run())
    assert set(verdicts(found).values()) == {TOO_FEW}
    assert found.verdict == "No conclusion is possible: at least one run has fewer than 40 requests."


def test_runs_that_cannot_be_compared_are_compared_with_a_warning() -> None:
    first, second = busy_run(), busy_run(requests=400)
    second.slo = {}
    second.planned = 9999
    objectives, load, broken_off = comparison_of(first, second).warnings
    assert "different objectives" in objectives
    assert "The load differs" in load
    assert "The second run was interrupted" in broken_off
