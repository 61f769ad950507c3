"""Whether requests go on, and what of a second run is news."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.generation import Delta, Failure
from router.routing.replay import (
    MAX_ATTEMPTS,
    MAX_DEATHS,
    DifferentAnswer,
    Poisons,
    Replay,
    RetryBudget,
    may_go_on,
)
from tests.router.routing.answers import ANSWERS, Answer, chunks, joined


@given(st.lists(st.booleans(), max_size=400), st.floats(0, 1), st.integers(0, 20))
def test_retries_are_a_bounded_share_of_the_requests(events: list[bool], share: float, reserve: int) -> None:
    budget = RetryBudget(share, reserve)
    requests = retries = 0
    for is_request in events:
        if is_request:
            budget.requested()
            requests += 1
        elif budget.take():
            retries += 1
        assert retries <= reserve + share * requests + 1e-6 + share


def test_a_spent_retry_budget_refills() -> None:
    budget = RetryBudget(share=0.5, reserve=1)
    assert budget.take()
    assert not budget.take()
    budget.requested()
    budget.requested()
    assert budget.take()


@pytest.mark.parametrize("failure", Failure)
def test_only_failures_of_the_replica_are_retried(failure: Failure) -> None:
    dead = {Failure.UNREACHABLE, Failure.STUB_DEAD, Failure.ENGINE_DIED, Failure.ENGINE_AWAY}
    faults = dead | {Failure.NOT_LOADED, Failure.CUT}
    assert may_go_on(failure, 1, 1) is (failure in faults)
    assert not may_go_on(failure, MAX_ATTEMPTS)
    assert not may_go_on(failure, 1, MAX_DEATHS)


def test_what_engines_died_of_is_known_for_a_minute() -> None:
    poisons = Poisons()
    for number in range(1000):
        poisons.add(b"%d" % number, number * 0.01)
    assert poisons.has(b"999", 10.0)
    assert not poisons.has(b"0", 10.0), "so many are not kept"
    assert poisons.has(b"999", 69.0)
    assert not poisons.has(b"999", 70.0)


def again(told: list[Delta]) -> Replay:
    """The next run, after so much was told."""
    tokens, logged = sum(delta.completion_tokens for delta in told), sum(len(delta.tokens) for delta in told)
    return Replay("".join(delta.text for delta in told), tokens, logged)


@settings(deadline=None)
@given(ANSWERS, st.data())
def test_a_replay_gives_the_answer_once_however_each_run_is_chunked(
    answer: Answer, data: st.DataObject
) -> None:
    got: list[Delta] = []
    runs = data.draw(st.integers(1, 4))
    for run in range(runs):
        replay = again(got) if got else None
        deltas = data.draw(chunks(answer))
        if run < runs - 1:
            deltas = deltas[: data.draw(st.integers(0, len(deltas) - 1))]
        for delta in deltas:
            news = delta if replay is None or replay.is_through else replay.pass_over(delta)
            got += [] if news is None else [news]
    assert joined(got) == answer
    assert [delta.finish for delta in got if delta.finish] == ["end_id"]
    assert got[-1].finish == "end_id"


@pytest.mark.parametrize(
    "second",
    [
        [Delta("Hallo", 2)],
        [Delta("Hel", 1), Delta("lo wurld", 1)],
        [Delta("Hel", 1, finish="end_id")],
        [Delta("Hello wo", 1, finish="end_id")],
    ],
)
def test_a_replay_with_a_different_answer_is_detected(second: list[Delta]) -> None:
    replay = again([Delta("Hello wo", 2)])
    *before, last = second
    for delta in before:
        assert replay.pass_over(delta) is None
    with pytest.raises(DifferentAnswer):
        replay.pass_over(last)


def test_the_steps_of_a_replay_are_reported_with_its_end() -> None:
    replay = again([Delta("Hel", 1)])
    last = replay.pass_over(Delta("Hello", 2, finish="length", steps=(1, 2, 3, 4, 5, 6)))
    assert last is not None
    assert (last.text, last.steps) == ("lo", (1, 2, 3, 4, 5, 6))


def test_a_replay_may_be_stopped_before_it_has_caught_up() -> None:
    replay = again([Delta("Hello", 2)])
    assert replay.pass_over(Delta("", finish="cancelled")) == Delta("", finish="cancelled")
