"""What a router says of itself, judged."""

from __future__ import annotations

import pytest

from launcher.commands.doctor.deployment import DeploymentFacts, ProbeResult, judge_deployment, judge_metrics
from launcher.commands.doctor.finding import Finding, Verdict
from launcher.commands.top.scrape import read_scrape

WELL = """\
inflight_build_info{version="1.0"} 1.0
process_start_time_seconds 1000.0
process_open_fds 50.0
process_max_fds 1000.0
inflight_store_reachable 1.0
inflight_replica_up{model="m",release="1",replica="triton-0"} 1.0
inflight_replica_up{model="m",release="1",replica="triton-1"} 1.0
inflight_replica_busy_ratio{model="m",release="1",replica="triton-0"} 0.95
inflight_replica_step_cost_frozen{model="m",release="1",replica="triton-0"} 0.0
inflight_objective_attained_ratio{model="m",tier="interactive",metric="first_token"} 0.99
inflight_waiting_requests{model="m",release="1",tier="batch"} 0.0
inflight_model_revivals_total{model="m",release="1",replica="triton-0"} 0.0
"""


def judged(page: str) -> dict[str, Finding]:
    return {each.check: each for each in judge_metrics(read_scrape(page, 9000.0), "1.0")}


def test_a_healthy_deployment_has_no_findings() -> None:
    found = judged(WELL)
    assert {each.verdict for each in found.values()} == {Verdict.OK, Verdict.SKIPPED}
    assert [check for check, each in found.items() if each.verdict is Verdict.SKIPPED] == [
        "Redis, as the router sees it"
    ]


@pytest.mark.parametrize(
    ("before", "after", "check", "verdict"),
    [
        ('version="1.0"', 'version="0.9"', "version", Verdict.WARN),
        ('replica="triton-1"} 1.0', 'replica="triton-1"} 0.0', "replicas of m@1", Verdict.WARN),
        (
            'inflight_model_revivals_total{model="m",release="1",replica="triton-0"} 0.0',
            'inflight_model_revivals_total{model="m",release="1",replica="triton-0"} 2.0',
            "restarts",
            Verdict.WARN,
        ),
        ('metric="first_token"} 0.99', 'metric="first_token"} 0.5', "objectives", Verdict.WARN),
        ('tier="batch"} 0.0', 'tier="batch"} 7.0', "load", Verdict.WARN),
        (
            'frozen{model="m",release="1",replica="triton-0"} 0.0',
            'frozen{model="m",release="1",replica="triton-0"} 1.0',
            "step cost",
            Verdict.WARN,
        ),
        (
            "inflight_store_reachable 1.0",
            "inflight_store_reachable 0.0",
            "store, as the router sees it",
            Verdict.FAIL,
        ),
        (
            "inflight_store_reachable 1.0",
            "inflight_store_reachable 1.0\ninflight_redis_reachable 0.0",
            "Redis, as the router sees it",
            Verdict.FAIL,
        ),
        ("process_open_fds 50.0", "process_open_fds 950.0", "its open files", Verdict.WARN),
    ],
)
def test_each_problem_of_a_deployment_is_found_alone(
    before: str, after: str, check: str, verdict: Verdict
) -> None:
    assert before in WELL
    found = judged(WELL.replace(before, after))
    assert found[check].verdict is verdict
    assert found[check].advice
    others = {each.verdict for name, each in found.items() if name != check}
    assert others <= {Verdict.OK, Verdict.SKIPPED}


def test_a_release_without_any_replica_fails() -> None:
    down = WELL.replace('replica="triton-0"} 1.0', 'replica="triton-0"} 0.0')
    found = judged(down.replace('replica="triton-1"} 1.0', 'replica="triton-1"} 0.0'))
    assert found["replicas of m@1"].verdict is Verdict.FAIL


def test_an_unreachable_router_is_the_only_finding() -> None:
    (found,) = judge_deployment(DeploymentFacts("http://x", False, "refused"), "1.0")
    assert (found.verdict, found.what) == (Verdict.FAIL, "nothing answers at http://x: refused")


def test_readiness_and_answers_are_reported_per_model() -> None:
    answers = (
        ProbeResult("good", 200, 0.05),
        ProbeResult("secret", 403),
        ProbeResult("tensors", 404),
        ProbeResult("full", 503, message="the model is busy"),
    )
    facts = DeploymentFacts(
        "http://x",
        is_live=True,
        is_ready=True,
        models={"good": True, "full": False},
        why_no_metrics="no key",
        answers=answers,
        tritons={"http://t": "", "http://u": "refused"},
    )
    found = judge_deployment(facts, "1.0")
    assert [(each.check, each.verdict.value) for each in found] == [
        ("live", "ok"),
        ("ready", "warn"),
        ("model good", "ok"),
        ("model secret", "skipped"),
        ("model tensors", "skipped"),
        ("model full", "fail"),
        ("Triton", "ok"),
        ("Triton", "warn"),
        ("metrics", "skipped"),
    ]


def test_a_router_that_is_not_ready_names_its_models() -> None:
    facts = DeploymentFacts("http://x", is_live=True, models={"m": False})
    assert judge_deployment(facts, "1.0")[1].what == "not ready: m"
