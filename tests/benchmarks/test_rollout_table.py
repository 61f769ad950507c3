from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rollout_table import PART, ROWS, Row, goals, jobs_of, kept_in, text
from benchmarks.rollouts import Ended
from router.control.releases.canary import Verdict

GOOD = Row("good", Verdict.PROMOTE, rates=(3.0,))
SLOW = Row("slow", Verdict.ROLL_BACK, slower=2.0, rates=(3.0,))


def ended(verdict: Verdict, requests: int = 10, seconds: float = 120.0) -> Ended:
    return Ended(verdict.value, requests, seconds)


def test_a_figure_says_how_many_ended_as_they_should_when_and_what_became_of_the_rest() -> None:
    promoted = [ended(Verdict.PROMOTE)] * 3
    assert text(GOOD, promoted) == "100 % in 2 / 2 min"
    assert text(GOOD, [*promoted, ended(Verdict.WAIT)]) == "75 % in 2 / 2 min, 25.0 % held"
    assert text(SLOW, [ended(Verdict.ROLL_BACK, 1200)]) == "100 % after 1,200 / 1,200"
    assert text(SLOW, []) == "-"


@pytest.mark.parametrize(("requests", "is_met"), [(30, True), (31, False)])
def test_a_goal_is_met_by_the_worst_figure_of_all(requests: int, is_met: bool) -> None:
    found = {
        GOOD.cells(3.0)[0]: [ended(Verdict.PROMOTE)],
        SLOW.cells(3.0)[0]: [ended(Verdict.ROLL_BACK, requests)],
    }
    met = {goal: met for goal, _, met in goals([GOOD, SLOW], found)}
    assert met["2 times slower: 95 of 100 rolled back within 30 requests"] is is_met
    assert met["identical: promoted in over 95 %"]


def test_every_figure_has_some_runs_before_any_has_all() -> None:
    jobs = jobs_of(ROWS, most_runs=3 * PART)
    begins = [seeds.start for _, seeds in jobs]
    assert begins == sorted(begins)
    assert len({cell for cell, seeds in jobs if seeds.start == 0}) == len({cell for cell, _ in jobs})


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    cell = replace(GOOD.cells(3.0)[0], errors=0.05)
    assert list(kept_in(tmp_path / "none")) == []
    file = tmp_path / "kept.jsonl"
    file.write_text(
        '{"cell": {"rate": 3.0, "machine": "quiet", "slower": 1.0, "errors": 0.05, "is_rehearsed": true, '
        '"past_requests": 1000, "mirror_per_s": 0.0}, "seeds": [12, 24], '
        '"ended": [{"verdict": "promote", "requests": 10, "seconds": 120.0}]}\n'
    )
    assert list(kept_in(file)) == [(cell, 12, [ended(Verdict.PROMOTE)])]
