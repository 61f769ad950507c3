"""Whether a small model's answer will do."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from python_backend.wire.errors import ErrorKind
from router.cascade.checks import (
    Checks,
    Findings,
    Reason,
    Step,
    certainty,
    helps_to_ask_large,
    next_step,
)

log_probs = st.floats(-20, 0)
some_checks = st.builds(Checks, st.none() | log_probs, st.booleans(), st.booleans())
some_findings = st.builds(
    Findings, st.none() | log_probs, st.none() | st.booleans(), st.none() | st.booleans()
)


@given(some_checks, some_findings)
def test_an_answer_is_told_only_where_every_check_is_known_to_have_passed(
    checks: Checks, found: Findings
) -> None:
    told = next_step(checks, found).step is Step.TELL
    least = checks.least_log_prob
    passed = (
        (least is None or (found.log_prob is not None and found.log_prob >= least))
        and (not checks.has_schema or found.fits_schema is True)
        and (not checks.has_judge or found.judge_agrees is True)
    )
    assert told == passed


@given(some_checks, some_findings)
def test_a_judge_is_asked_once_at_most_and_only_after_all_else_has_passed(
    checks: Checks, found: Findings
) -> None:
    if next_step(checks, found).step is not Step.JUDGE:
        return
    assert checks.has_judge
    assert found.judge_agrees is None
    without = Checks(checks.least_log_prob, checks.has_schema)
    assert next_step(without, found).step is Step.TELL
    for agrees in (True, False):
        heard = Findings(found.log_prob, found.fits_schema, agrees)
        assert next_step(checks, heard).step is (Step.TELL if agrees else Step.ASK_LARGE)


@given(some_checks, some_findings)
def test_a_reason_is_given_where_the_large_model_is_asked_and_nowhere_else(
    checks: Checks, found: Findings
) -> None:
    decision = next_step(checks, found)
    assert (decision.reason is not None) == (decision.step is Step.ASK_LARGE)
    wanted = {Reason.LOG_PROB: checks.least_log_prob is not None, Reason.SCHEMA: checks.has_schema}
    assert decision.reason is None or wanted.get(decision.reason, checks.has_judge)


@given(some_checks, some_findings, log_probs)
def test_a_more_certain_answer_is_never_held_to_be_worse(
    checks: Checks, found: Findings, more: float
) -> None:
    if found.log_prob is None or more < found.log_prob:
        return
    if next_step(checks, found).step is Step.TELL:
        better = Findings(more, found.fits_schema, found.judge_agrees)
        assert next_step(checks, better).step is Step.TELL


@given(st.lists(st.lists(log_probs, max_size=5), max_size=4))
def test_of_several_choices_the_least_certain_one_counts(choices: list[list[float]]) -> None:
    found = certainty(choices)
    if found is None:
        assert not choices or [] in choices
    else:
        assert all(found <= sum(each) / len(each) for each in choices)
        assert certainty(choices[:1]) is not None


def test_the_callers_own_limits_and_rights_end_a_request_and_all_else_is_tried_with_the_large_model() -> None:
    final = {kind for kind in ErrorKind if not helps_to_ask_large(kind)}
    assert ErrorKind.CANCELLED in final
    assert {ErrorKind.RATE_LIMITED, ErrorKind.QUOTA, ErrorKind.FORBIDDEN} < final
    assert not final & {ErrorKind.CONTEXT_LENGTH_EXCEEDED, ErrorKind.OVERLOADED, ErrorKind.ENGINE_FAILED}


def test_without_checks_every_answer_would_do() -> None:
    for fits, agrees in product((None, True, False), repeat=2):
        assert next_step(Checks(), Findings(None, fits, agrees)).step is Step.TELL
