"""What steps of a run took, by what was told of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.objectives.arena import ENGINE
from benchmarks.objectives.session import ALONE, TEACHES, SentRun, Session, overhead_s
from benchmarks.objectives.step_times import by_the_run
from loadtest.results import RequestResult
from python_backend.costs.step_cost import StepCost, StepShape

TOLD = StepCost(8.0, 0.5, 2.0, 10.0)
PROMPT, ANSWER, STEPS, SLOWER = 100, 21, 40, 1.25
FIRST_S, IN_ENGINE_S = 0.3, 0.28


def session_of(name: str) -> Session:
    """A run of two servers, between others, whose steps took a quarter longer than was told."""
    answers = [answer() for _ in range(2)]
    runs = [SentRun(each, at_s, (0.0, 5.0), answers) for each, at_s in ((name, 10.0), ("later", 20.0))]
    read_ktokens = (ANSWER - 1) * (PROMPT + ANSWER / 2) / 1000
    work_ms = STEPS * TOLD.base_ms + len(answers) * (
        PROMPT * TOLD.prefill_token_ms
        + (ANSWER - 1) * TOLD.decode_sequence_ms
        + read_ktokens * TOLD.kv_kilotoken_ms
    )
    before, after = sample(10.5, 7, 1.0, 3), sample(19.5, 7 + STEPS, 1.0 + SLOWER * work_ms / 1000, 5)
    return Session(ENGINE, {}, servers=2, runs=runs, samples=[before, after, sample(20.5, 999, 99.0, 99)])


def answer() -> RequestResult:
    return RequestResult("trace", 0.0, prompt_tokens=PROMPT, completion_tokens=ANSWER, first_token_s=FIRST_S)


def sample(at_s: float, steps: float, busy_s: float, firsts: int) -> dict[str, float]:
    told_s = {
        f'inflight_engine_step_cost_seconds{{coefficient="{name}"}}': 2 * value / 1000  # of two servers
        for name, value in (
            ("base", TOLD.base_ms),
            ("prefill_token", TOLD.prefill_token_ms),
            ("decode_sequence", TOLD.decode_sequence_ms),
            ("kv_kilotoken", TOLD.kv_kilotoken_ms),
        )
    }
    return {
        "at_s": at_s,
        'nv_trt_llm_general_metrics{general_type="iteration_counter",model="m"}': steps,
        'inflight_engine_busy_seconds_total{model="m"}': busy_s,
        'inflight_engine_time_to_first_token_seconds_count{tier="batch"}': firsts,
        'inflight_engine_time_to_first_token_seconds_sum{tier="batch"}': firsts * IN_ENGINE_S,
        **told_s,
    }


def test_a_runs_steps_take_what_was_told_and_as_much_more_as_they_took_in_all() -> None:
    session = session_of("0.4x")
    times = by_the_run(session, session.runs[0])
    assert times.believed is not None
    assert times.believed.kv_kilotoken_ms == pytest.approx(TOLD.kv_kilotoken_ms)
    assert times.taken.base_ms == pytest.approx(SLOWER * TOLD.base_ms)
    assert times.taken.prefill_token_ms == pytest.approx(SLOWER * TOLD.prefill_token_ms)


def test_steps_take_what_those_of_their_size_took_in_the_run_where_there_were_enough() -> None:
    session = session_of("0.4x")
    sized = {1: (20, 0.2), 2: (20, 0.3), 3: (1, 9.9), 8: (20, 0.9), 24: (10, 1.0)}
    for size, (steps, took_s) in sized.items():
        label = f'{{model="tensorrt_llm",tokens="{size}",version="1"}}'
        session.samples[1][f"inflight_engine_steps_total{label}"] = steps
        session.samples[1][f"inflight_engine_step_seconds_total{label}"] = took_s
    taken = by_the_run(session, session.runs[0]).taken
    assert [taken.step_ms(StepShape(0, rows, 500)) for rows in (1, 2, 5, 8)] == pytest.approx(
        [10, 15, 30, 45]
    )
    assert taken.step_ms(StepShape(18, 2, 0)) == pytest.approx(99, abs=3), "between 17 and 24 tokens"
    assert taken.step_ms(StepShape(60, 0, 0)) == pytest.approx(SLOWER * (8 + 60 * 0.5))


def test_a_time_at_which_steps_of_each_size_took_longer_is_known_by_its_second() -> None:
    session = session_of("0.4x")
    session.samples[:] = [dict(session.samples[0], at_s=10.0 + 0.5 * number) for number in range(20)]
    steps, took_s = 0, 0.0
    for sample in session.samples:
        sample['inflight_engine_steps_total{model="tensorrt_llm",tokens="2",version="1"}'] = steps
        sample['inflight_engine_step_seconds_total{model="tensorrt_llm",tokens="2",version="1"}'] = took_s
        steps, took_s = steps + 20, took_s + (0.6 if 14.0 <= sample["at_s"] < 16.0 else 0.2)
    slowness = by_the_run(session, session.runs[0]).slowness
    usual = (15 * 0.2 + 4 * 0.6) / 19
    found = [slowness.at(at_s) for at_s in (10.5, 14.5, 15.5, 18.5)]
    assert found == pytest.approx([0.2 / usual, 0.6 / usual, 0.6 / usual, 0.2 / usual])
    assert slowness.since(10.0).at(4.5) == slowness.at(14.5)
    assert slowness.at(9.9) == slowness.at(30.0) == 1.0


def test_a_run_of_which_nothing_was_told_is_refused_by_its_name() -> None:
    session = Session(ENGINE, {}, runs=[SentRun("0.4x", 0.0, (0.0, 5.0), [])], samples=[{"at_s": 1.0}])
    with pytest.raises(ValueError, match=r"0\.4x"):
        by_the_run(session, session.runs[0])


def test_what_is_around_an_engine_is_what_a_first_token_takes_beside_its_time_there() -> None:
    assert overhead_s(session_of(ALONE)) == pytest.approx(FIRST_S - IN_ENGINE_S)
    assert overhead_s(session_of("0.4x")) == 0.0


def test_on_a_processor_what_is_around_an_engine_is_that_of_the_lightest_run_that_taught() -> None:
    session = session_of(TEACHES)
    crowded = [replace(answer(), first_token_s=9.9) for _ in range(9)]
    session.runs.insert(0, SentRun(TEACHES, 0.0, (0.0, 5.0), crowded))
    around_s = by_the_run(session, session.runs[1]).around_s
    assert around_s == pytest.approx(FIRST_S - IN_ENGINE_S)
