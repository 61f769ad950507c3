"""A forecast beside what came."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.objectives.agreement import (
    FIRST,
    GOALS,
    Compared,
    Seen,
    by_detailed,
    medians,
    moved,
    of_times,
    seen_in,
)
from benchmarks.objectives.arena import COST, ENGINE, FIRST_TOKEN_S, INTER_TOKEN_S, objectives_of
from benchmarks.objectives.arrivals import at_rate, in_tiers
from benchmarks.objectives.session import Part, SentRun, Session, keep, read
from benchmarks.objectives.step_times import by_other_runs
from loadtest.results import RequestResult
from loadtest.traces import synthetic_trace
from simulator.fleet.fleet import FleetPlayed
from simulator.fleet.state import BIN_FACTOR, BINS, FIRST_BIN_S, TIERS

SECONDS = 20.0


def session_of(*parts: tuple[Part, float]) -> Session:
    """Runs of so many requests a second each, half a minute apart; nothing has become of them yet."""
    trace = in_tiers(synthetic_trace(1, 60.0))
    session = Session(ENGINE, objectives_of("m", FIRST_TOKEN_S, INTER_TOKEN_S), cost=COST)
    for number, (part, per_s) in enumerate(parts):
        results = [
            RequestResult(
                "trace",
                each.at_s,
                each.tenant,
                each.tier or "",
                prompt_tokens=each.prompt_tokens,
                asked_tokens=each.output_tokens,
            )
            for each in at_rate(trace, per_s, SECONDS).requests
        ]
        session.runs.append(SentRun(f"{per_s:g}/s", 30.0 * number, (0.0, SECONDS), results, part, COST))
    return session


def test_a_percentile_is_of_all_tiers_and_lies_within_its_bin() -> None:
    times = np.zeros((2, TIERS, BINS), np.int64)
    times[FIRST, 0, 100] = times[FIRST, 2, 100] = 50
    played = FleetPlayed(np.zeros(1), np.zeros(1), times, (), (), 0.0)
    assert of_times(played, FIRST, 0.5) == pytest.approx(FIRST_BIN_S * BIN_FACTOR**99.5)


def test_errors_are_relative_to_what_was_measured_and_only_those_with_a_goal_can_miss_it() -> None:
    seen, said = Seen(2.0, 0.1, 0.2, 0.01, 0.02), Seen(1.85, 0.1, 0.24, 0.01, 0.02)
    compared = Compared("0.4x", "fleet", 2.0, seen, said, GOALS)
    errors = compared.errors()
    assert errors["good_per_s"] == pytest.approx(0.075)
    assert errors["first_p95_s"] == pytest.approx(0.2)
    assert errors["first_p50_s"] == 0
    assert not compared.is_met
    assert replace(compared, goals={"good_per_s": 0.1}).is_met


def test_a_replay_moves_each_request_a_little_and_keeps_their_order_and_number() -> None:
    session = session_of((Part.TEACHING, 4.0), (Part.LOADS, 4.0))
    assert moved(session, 0) == session
    (before, _), (after, _) = session.runs, moved(session, 1).runs
    at_s = [[each.at_s for each in run.results] for run in (before, after)]
    assert at_s[1] == sorted(at_s[1])
    assert all(0 <= late - was <= 0.004 for was, late in zip(*map(sorted, at_s), strict=True))
    assert at_s[0] != at_s[1]
    assert moved(session, 1) == moved(session, 1) != moved(session, 2)


def test_what_is_foretold_is_the_median_of_replays() -> None:
    seen = Seen(2.0, 0.1, 0.2, 0.01, 0.02)
    said = [Seen(1.0 * each, 2.0 * each, 3.0, 4.0, 5.0 - each) for each in (3, 1, 2)]
    replays = [[Compared("0.4x", "fleet", 2.0, seen, each, GOALS)] for each in said]
    (found,) = medians(replays)
    assert found.measured == seen
    assert found.foretold == Seen(2.0, 4.0, 3.0, 4.0, 3.0)


def test_what_was_sent_before_a_run_has_taught_the_router_of_the_forecast() -> None:
    alone = session_of((Part.OVERLOAD, 75.0))
    after = session_of((Part.TEACHING, 5.0), (Part.OVERLOAD, 75.0))
    ((_, cold),) = by_detailed(alone, Part.OVERLOAD, by_other_runs)
    ((_, warm),) = by_detailed(after, Part.OVERLOAD, by_other_runs)
    assert [each.at_s for each in warm.results] == pytest.approx([each.at_s for each in cold.results])
    assert [each.status for each in warm.results] != [each.status for each in cold.results]


def test_every_simulated_request_is_answered_whole_or_refused_with_a_time_to_come_back() -> None:
    ((_, run),) = by_detailed(session_of((Part.OVERLOAD, 40.0)), Part.OVERLOAD, by_other_runs)
    assert all(each.is_answered != each.is_refused for each in run.results)
    assert any(each.is_refused for each in run.results)


@pytest.mark.parametrize("name", ["session.json", "session.json.gz"])
def test_a_session_is_foretold_from_its_file_alone(tmp_path: Path, name: str) -> None:
    session = session_of((Part.LOADS, 4.0))
    keep(tmp_path / name, session)
    again = read(tmp_path / name)
    assert again == session
    ((_, said),) = by_detailed(again, Part.LOADS, by_other_runs)
    ((_, was),) = by_detailed(session, Part.LOADS, by_other_runs)
    assert seen_in(said, session.objectives) == seen_in(was, session.objectives)
