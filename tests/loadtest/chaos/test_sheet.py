"""Each line of the sheet finds what it is about, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.chaos.sheet import (
    SPARE_FILES,
    Condition,
    Money,
    of_answers,
    of_condition,
    of_kept,
    of_money,
    of_waits,
)
from loadtest.results import RequestResult

SPARING, CUTTING = False, True  # whether answers may be cut
TEXTS = {"0": "one two three"}
REST = Condition({"triton": 2, "router": 2}, files={"router 0": 20}, regions=8, replicas_up=4, spool_files=2)


def answer(**changed: object) -> RequestResult:
    fields: dict[str, object] = {
        "kind": "0",
        "at_s": 1.0,
        "status": 200,
        "ended_s": 2.0,
        "completion_tokens": 3,
        "asked_tokens": 3,
        "pieces": 3,
        "request_id": "r1",
        "text": TEXTS["0"],
    }
    return RequestResult(**{**fields, **changed})  # type: ignore[arg-type]  # by name


CUT = answer(text="one t", error="ClientPayloadError", ended_s=None, completion_tokens=2, pieces=2)


def test_a_whole_answer_that_was_billed_as_told_is_clean() -> None:
    assert not [*of_answers([answer()], TEXTS, SPARING), *of_money([answer()], Money({"r1": 3}), SPARING)]


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (answer(text="one three"), "another text"),
        (answer(text="one two two three"), "another text"),
        (answer(text="one two"), "as if it were complete"),
        (answer(ended_s=None, text="one"), "never ended"),
        (answer(status=500, error="oh", text=""), "failed: oh"),
        (CUT, "failed: ClientPayloadError"),
    ],
)
def test_answers_with_a_gap_a_repeat_or_no_end_are_violations(result: RequestResult, complaint: str) -> None:
    (found,) = of_answers([result], TEXTS, SPARING)
    assert complaint in found


def test_who_has_a_key_gets_a_whole_answer_whatever_breaks() -> None:
    assert not list(of_kept([answer(tenant="keeper"), CUT], "keeper"))
    (found,) = of_kept([replace(CUT, tenant="keeper")], "keeper")
    assert "r1 was incomplete in the end" in found


def test_an_answer_that_lost_its_connection_with_its_router_is_none() -> None:
    assert not list(of_answers([CUT], TEXTS, CUTTING))
    assert list(of_answers([replace(CUT, text="two")], TEXTS, CUTTING))


@pytest.mark.parametrize("status", [402, 429, 503])
def test_who_is_refused_may_be_refused_and_is_not_billed(status: int) -> None:
    refused = answer(status=status, error="no", text="", completion_tokens=0, pieces=0)
    assert not [*of_answers([refused], TEXTS, SPARING), *of_money([refused], Money({}), SPARING)]
    assert list(of_money([refused], Money({"r1": 1}), SPARING))


@pytest.mark.parametrize(
    ("money", "complaint"),
    [
        (Money({}), "received 3 tokens and was billed None"),
        (Money({"r1": 4}), "received 3 tokens and was billed 4"),
        (Money({"r1": 3, "r2": 1}), "that no client sent, such as r2"),
        (Money({"r1": 3}, spent=130, budget=100, most_reserved=20), "130 was spent of a budget of 100"),
    ],
)
def test_what_was_billed_beside_what_was_told_is_a_violation(money: Money, complaint: str) -> None:
    (found,) = of_money([answer()], money, SPARING)
    assert complaint in found


def test_a_cut_answer_is_billed_for_what_was_sent_at_least_or_not_at_all() -> None:
    assert not list(of_money([CUT], Money({}), CUTTING))
    assert not list(of_money([CUT], Money({"r1": 2, "whom the client never knew": 3}), CUTTING))
    assert list(of_money([CUT], Money({"r1": 1}), CUTTING))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"processes": {"triton": 1, "router": 2}}, "1 processes of triton, before there were 2"),
        ({"processes": {**REST.processes, "engine": 1}}, "1 processes of engine, before there were 0"),
        ({"stopped": 1}, "stopped"),
        ({"files": {"router 0": 21 + SPARE_FILES}}, "files and sockets open"),
        ({"regions": 9}, "regions of shared memory"),
        ({"in_flight": 1.0}, "still held by routers"),
        ({"used_blocks": 4.0}, "blocks of the KV cache"),
        ({"replicas_up": 3.0}, "3 replicas are up"),
        ({"spool_files": 5}, "wait to be delivered"),
    ],
)
def test_what_is_left_behind_or_missing_is_a_violation(changed: dict[str, object], complaint: str) -> None:
    (found,) = of_condition(REST, replace(REST, **changed))  # type: ignore[arg-type]  # by name
    assert complaint in found


def test_a_stack_at_rest_is_clean_and_may_keep_regions_of_killed_models() -> None:
    assert not list(of_condition(REST, REST))
    assert not list(of_condition(REST, replace(REST, regions=10, left_regions=2)))


def test_nobody_but_who_floods_may_wait_longer_than_the_limit() -> None:
    late = [answer(tenant="flood", first_token_s=90.0), answer(tenant="acme", first_token_s=1.0)]
    assert not list(of_waits(late, "flood", 60.0))
    (found,) = of_waits([*late, answer(tenant="acme", longest_gap_s=61.0)], "flood", 60.0)
    assert "received nothing for 61 s" in found
