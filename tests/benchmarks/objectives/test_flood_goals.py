from __future__ import annotations

from benchmarks.objectives.flood_goals import Answer, Goal, Phase, goals


def streamed(tenant: str, at_s: float, gap_s: float, tokens: int) -> Answer:
    heard_s = [at_s + gap_s * (number + 1) for number in range(tokens)]
    return Answer(tenant, at_s, 200, heard_s, tokens)


def refused(at_s: float, retry_after_s: float) -> Answer:
    return Answer("flood", at_s, 503, retry_after_s=retry_after_s)


def phase(name: str, *answers: Answer) -> Phase:
    return Phase(name, 23.0, list(answers))


def judged(both: Phase) -> dict[str, Goal]:
    flood_alone = phase("flood alone", streamed("flood", 0.0, 0.1, 230))
    calm_alone = phase("calm alone", *(streamed("calm", float(at_s), 0.02, 16) for at_s in range(20)))
    return {goal.what.partition(",")[0]: goal for goal in goals("plain", [both, flood_alone, calm_alone])}


def test_goals_are_met_where_the_calm_tenant_is_served_beside_the_flood() -> None:
    calm = (streamed("calm", float(at_s), 0.05, 16) for at_s in range(20))
    found = judged(phase("both", *calm, streamed("flood", 0.0, 0.1, 230)))
    assert len(found) == 6
    assert all(goal.is_met for goal in found.values()), found


def test_a_refused_request_of_the_calm_tenant_and_long_gaps_of_the_flood_are_missed_goals() -> None:
    calm = [streamed("calm", float(at_s), 0.05, 16) for at_s in range(19)]
    found = judged(phase("both", *calm, Answer("calm", 19.0, 503), streamed("flood", 0.0, 0.2, 115)))
    missed = {what for what, goal in found.items() if not goal.is_met}
    assert found["calm: answered"].seen == "19 of 20"
    assert {"calm: answered", "flood: inter-token p95", "flood: tokens/s"} <= missed


def test_retry_after_is_compared_with_when_the_tenant_was_let_in_next() -> None:
    let_in = [streamed("flood", at_s, 0.1, 20) for at_s in (0.0, 10.0, 20.0)]
    both = phase("both", *let_in, refused(6.0, 4.0), refused(8.0, 2.0), refused(12.0, 16.0))
    assert both.retry_after_times("flood") == 1.0
