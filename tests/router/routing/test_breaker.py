"""The circuit breaker."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.generation import Failure
from router.routing import replica_choice
from router.routing.replica_choice import Health, Phase

WEIGHTY = (Failure.UNREACHABLE, Failure.STUB_DEAD)
HARMLESS = (Failure.OVERLOADED, Failure.CALLER, Failure.CUT)


@pytest.mark.parametrize("failure", WEIGHTY)
def test_an_unreachable_server_and_a_dead_process_open_the_breaker_at_once(failure: Failure) -> None:
    health = Health().after_failure(failure, began_s=9.0, now_s=10.0)
    assert health.phase is Phase.DOWN
    assert not health.may_take(10.0)
    assert health.is_reviving is (failure is Failure.STUB_DEAD)
    assert health.is_gone is (failure is Failure.UNREACHABLE)
    assert health.is_awaited(39.0, 30.0)


def test_engine_failures_open_the_breaker_only_when_many_without_an_answer() -> None:
    health = Health()
    for number in range(replica_choice.FAILURES_TO_BREAK - 1):
        health = health.after_failure(Failure.ENGINE, number, number)
        assert health.is_up
    assert health.after_answer(4.0, 4.5).after_failure(Failure.ENGINE, 5.0, 5.0).is_up
    assert not health.after_failure(Failure.ENGINE, 5.0, 5.0).is_up
    assert health.after_failure(Failure.ENGINE, 20.0, 20.0).is_up


@given(st.lists(st.sampled_from(HARMLESS), max_size=50))
def test_overload_and_callers_faults_never_open_the_breaker(failures: list[Failure]) -> None:
    health = Health()
    for at_s, failure in enumerate(failures):
        health = health.after_failure(failure, at_s, at_s)
    assert health == Health()


def test_one_trial_request_at_a_time_tests_an_open_breaker() -> None:
    health = Health().after_failure(Failure.UNREACHABLE, 0.0, 0.0)
    assert not health.may_take(0.49)
    assert health.may_take(0.5)
    trial = health.taking(0.5)
    assert not trial.may_take(0.6)
    assert trial.after_answer(began_s=0.5, now_s=0.7).is_up
    assert trial.after_answer(began_s=0.4, now_s=0.7) is trial, "an older request says nothing"
    assert trial.may_take(0.5 + replica_choice.TRIAL_LIMIT_S), "a trial that is never heard of does not block"


def test_each_failed_trial_doubles_the_pause_up_to_a_limit() -> None:
    health = Health().after_failure(Failure.UNREACHABLE, 0.0, 0.0)
    pauses = []
    for _ in range(8):
        at_s = health.retry_s
        health = health.taking(at_s).after_failure(Failure.UNREACHABLE, at_s, at_s)
        pauses.append(health.retry_s - at_s)
        assert health.gone_s == 0.0, "a server that a trial does not find is gone for as long as before"
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert pauses[-1] == replica_choice.LONGEST_PAUSE_S


@pytest.mark.parametrize("failure", [Failure.OVERLOADED, Failure.CALLER])
def test_a_trial_that_is_refused_shows_that_the_server_is_back(failure: Failure) -> None:
    trial = Health().after_failure(Failure.UNREACHABLE, 0.0, 0.0).taking(1.0)
    assert trial.after_failure(failure, 1.0, 1.1).is_up


EVIDENCE = st.lists(
    st.tuples(
        st.sampled_from([*Failure, None]),
        st.floats(-100, 5),  # began
        st.floats(0, 0.4),  # after it went down
    ),
    max_size=30,
)


@settings(deadline=None)
@given(EVIDENCE, st.sampled_from(WEIGHTY))
def test_an_open_breaker_ignores_older_requests_until_its_pause_is_over(
    evidence: list[tuple[Failure | None, float, float]], failure: Failure
) -> None:
    """Once down it takes nothing before its pause is over, whatever comes in of older requests."""
    health = Health().after_failure(failure, 1.0, 1.0)
    for other, began_s, after_s in sorted(evidence, key=lambda each: each[2]):
        now_s = 1.0 + after_s
        if other is None:
            health = health.after_answer(min(began_s, now_s), now_s)
        else:
            health = health.after_failure(other, min(began_s, now_s), now_s)
        assert not health.may_take(now_s)


@settings(deadline=None)
@given(EVIDENCE, st.booleans())
def test_a_probed_outage_holds_until_the_probe_sees_the_replica_up(
    evidence: list[tuple[Failure | None, float, float]], reviving: bool
) -> None:
    health = Health().down("a ping was not answered", 1.0, reviving)
    for other, began_s, after_s in evidence:
        now_s = 1.0 + 1000 * after_s
        health = (
            health.after_answer(began_s, now_s)
            if other is None
            else health.after_failure(other, began_s, now_s)
        )
        assert not health.may_take(now_s)
        assert health.is_reviving is reviving
    assert health.retry_s == math.inf
    back = health.up(500.0)
    assert back.is_up
    assert not back.is_reviving
    assert back.after_failure(Failure.UNREACHABLE, began_s=499.0, now_s=501.0).is_up, "from before"


def test_marking_a_healthy_replica_up_changes_nothing() -> None:
    health = Health().after_failure(Failure.ENGINE, 1.0, 1.0)
    assert health.up(2.0) is health
