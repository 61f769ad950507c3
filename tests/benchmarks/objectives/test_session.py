from __future__ import annotations

from dataclasses import dataclass

import pytest

from benchmarks.objectives.arena import ENGINE
from benchmarks.objectives.session import (
    GENERATED,
    STOLEN,
    TEACHES,
    SentRun,
    Session,
    answered_per_s,
    homes_of,
    stolen_shares,
)
from loadtest.replay.plan import plan_of
from loadtest.traces import Trace, TracedRequest
from router.routing.replica_choice import Opening, choose, opening_of


@dataclass(frozen=True)
class Idle:
    name: str
    outstanding_tokens: int = 0
    begun: int = 0


def test_a_prompts_home_is_the_replica_that_an_idle_router_would_choose() -> None:
    plan = plan_of([TracedRequest(0.0, 10, 5, "t", "standard")] * 40, run=7)
    names = ["one", "two"]
    openings = [Opening(opening_of(each.prompt.token_ids()), 10) for each in plan]  # type: ignore[union-attr]
    chosen = [choose([Idle(name) for name in names], each) for each in openings]
    homes = homes_of(plan, names)
    assert [names[home] for home in homes] == [each.name for each in chosen if each is not None]
    assert set(homes) == {0, 1}


def test_without_names_nothing_is_known_of_homes() -> None:
    assert homes_of(plan_of([TracedRequest(0.0, 10, 5, "t", "standard")]), []) == []


def test_what_can_be_answered_is_counted_in_the_last_run_that_taught_while_its_queue_is_full() -> None:
    grown = {10.0: 0.0, 20.0: 100.0, 30.0: 700.0, 40.0: 1300.0, 50.0: 1400.0}  # it comes from 10 to 40
    samples = [{"at_s": at_s, f'{GENERATED}{{model="m"}}': tokens} for at_s, tokens in grown.items()]
    runs = [SentRun(TEACHES, at_s, (0.0, 30.0), []) for at_s in (0.0, 10.0)]
    session = Session(ENGINE, {}, runs=runs, samples=samples)
    trace = Trace("t", (TracedRequest(0.0, 5, 20, "t", "batch"), TracedRequest(1.0, 5, 40, "t", "batch")))
    assert answered_per_s(session, trace) == 60.0 / 30


def test_what_a_host_gave_others_is_told_for_every_five_seconds_of_a_run() -> None:
    runs = [SentRun(name, at_s, (0.0, 12.0), []) for name, at_s in (("0.4x", 0.0), ("later", 12.0))]
    samples = [{"at_s": half / 2, STOLEN: max(0.0, half / 2 - 7)} for half in range(40)]
    session = Session(ENGINE, {}, runs=runs, samples=samples)
    assert stolen_shares(session, runs[0]) == pytest.approx([0.0, 0.6])
    without = Session(ENGINE, {}, runs=runs, samples=[{"at_s": each["at_s"]} for each in samples])
    assert stolen_shares(without, runs[0]) == []
