"""A run is read back as it was, or else the error says what is wrong with the file."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.report.figures import figures_of, summary_of
from loadtest.report.storage import RunError, load_run, stored, to_json
from loadtest.results import LoadRun, RequestResult, ServerSample, Slo
from tests.loadtest.report.made_runs import BEGAN_AT, answered, busy_run


def test_a_stored_run_is_read_back_the_same() -> None:
    run = busy_run()
    back = stored(run)
    assert (back.name, back.slo, back.about, back.clamped, back.planned) == (
        *(run.name, run.slo, run.about, run.clamped, run.planned),
    )
    assert len(back.results) == len(run.results)
    for mine, theirs in zip(run.results, back.results, strict=True):
        assert len(theirs.gaps_s) == len(mine.gaps_s)
        assert theirs.first_token_s == pytest.approx(mine.first_token_s, abs=1e-5)
        assert theirs.between_tokens_s == pytest.approx(mine.between_tokens_s, abs=2e-6)
        assert _without_times(theirs) == _without_times(mine)
    before, after = (figures_of(each.results, each.slo, each.duration_s) for each in (run, back))
    assert before.between_tokens_s.p95 == pytest.approx(after.between_tokens_s.p95, rel=0.05)
    assert (before.good, before.late, before.failed) == (after.good, after.late, after.failed)
    assert back.samples == run.samples


def test_tokens_of_an_abandoned_answer_are_kept() -> None:
    left = RequestResult("trace", 0.0, status=200, first_token_s=1.0, completion_tokens=3, gaps_s=[0.1, 0.3])
    (back,) = stored(LoadRun("r", BEGAN_AT, 2.0, [left])).results
    assert back.has_left
    assert back.between_tokens_s is None
    assert back.gaps_s == pytest.approx(left.gaps_s, rel=0.05)


def _without_times(result: RequestResult) -> RequestResult:
    return replace(result, gaps_s=[], at_s=0.0, first_token_s=None, ended_s=None, longest_gap_s=0.0)


@settings(deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=40))
def test_storing_twice_changes_no_more_than_storing_once(gaps_s: list[float]) -> None:
    result = answered(tokens=len(gaps_s) + 1)
    result.gaps_s = gaps_s
    once = stored(LoadRun("t", BEGAN_AT, 1.0, [result]))
    twice = stored(once)
    assert twice.results[0].between_tokens_s == pytest.approx(once.results[0].between_tokens_s, abs=1e-6)
    assert sorted(twice.results[0].gaps_s) == pytest.approx(
        sorted(once.results[0].gaps_s), rel=0.06, abs=1e-5
    )


def test_a_file_stays_small_however_long_the_answers_are() -> None:
    long = [answered(float(number), tokens=2000) for number in range(50)]
    assert len(json.dumps(to_json(LoadRun("t", BEGAN_AT, 60.0, long)))) < 50 * 400
    samples = [ServerSample(float(at_s)) for at_s in range(9000)]
    kept = to_json(LoadRun("t", BEGAN_AT, 9000.0, [], samples))["samples"]
    assert len(kept) <= 2000
    assert kept[-1]["at_s"] == 8999.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "is not JSON"),
        ("[]", "it has no version"),
        ('{"version": 9}', "is of version 9; this one reads version 1"),
        ('{"version": 1, "name": "t"}', "has no 'began_at'"),
    ],
)
def test_a_file_that_is_not_a_run_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(RunError, match=says):
        load_run(tmp_path)
    with pytest.raises(RunError, match="cannot be read: No such file"):
        load_run(tmp_path / "other.json")


def test_a_run_with_rows_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    data = to_json(LoadRun("t", BEGAN_AT, 1.0, [answered()]))
    data["requests"][0].pop()
    path = tmp_path / "results.json"
    path.write_text(json.dumps(data))
    with pytest.raises(RunError, match="does not have the fields of a run"):
        load_run(path)


def test_every_field_of_the_file_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "loadtest.md").read_text()
    told = set(re.findall(r"`(\w+)`", page.split("## The report\n")[1]))
    assert {*to_json(busy_run()), "summary"} <= told
    assert {each.name for each in fields(ServerSample)} <= told
    assert {each.name for each in fields(Slo)} <= told
    assert set(summary_of(busy_run())) <= told
