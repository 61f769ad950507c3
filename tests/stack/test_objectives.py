"""Objectives on the real stack, with an engine whose steps take a given time: overload, fairness, budgets."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.objectives.arena import paced
from benchmarks.objectives.arrivals import capacity_per_s
from benchmarks.objectives.prediction import Engine
from benchmarks.objectives.serving import Served, Setup, serving
from loadtest.percentiles import percentile
from loadtest.replay.clients import send_from
from loadtest.replay.plan import plan_of
from loadtest.replay.sender import Target
from loadtest.results import RequestResult
from loadtest.traces import TracedRequest
from python_backend.costs.step_cost import StepCost, StepShape
from python_backend.wire.tiers import Tier
from router.core.objective import Objective
from tests.pace import patience
from tests.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

COST = StepCost(20.0, 0.05, 0.25, 0.05)
ENGINE = Engine(places=8, kv_tokens=4096, step_tokens=512)
PROMPT_TOKENS, NEW_TOKENS = 64, 32
# Almost the same for all: what else the machine has to do makes no tier miss it sooner than another.
FIRST_TOKEN_S = {Tier.INTERACTIVE: 2.0, Tier.STANDARD: 2.1, Tier.BATCH: 2.2}
# One tenant a tier, and one who floods in the same tier as another.
TENANTS = {"hurried": Tier.INTERACTIVE, "usual": Tier.STANDARD, "patient": Tier.BATCH, "loud": Tier.STANDARD}
OVERLOAD_S = 5.0
# What each asks for, in capacities of the engine.
TIMES = {"hurried": 1.0, "usual": 0.3, "patient": 1.0, "loud": 3.0}


@pytest.fixture(scope="module")
def served(data_dir: Path) -> Iterator[Served]:
    with serving(Setup(paced(COST, ENGINE), data_dir=data_dir), TENANTS) as running:
        objectives = {
            tier.label: Objective(running.model, tier, first_s) for tier, first_s in FIRST_TOKEN_S.items()
        }
        running.set_objectives(objectives)
        yield running


def request(tenant: str, at_s: float = 0.0) -> TracedRequest:
    return TracedRequest(at_s, PROMPT_TOKENS, NEW_TOKENS, tenant, TENANTS[tenant].label)


def plan() -> list[TracedRequest]:
    capacity = capacity_per_s([request("usual")], COST, ENGINE.places, ENGINE.kv_tokens)
    found = []
    for tenant, times in TIMES.items():
        count = round(times * capacity * OVERLOAD_S)
        found += [request(tenant, OVERLOAD_S * number / count) for number in range(count)]
    return sorted(found, key=lambda each: each.at_s)


@pytest.fixture(scope="module")
def learned(served: Served) -> Served:
    """The engine has done enough steps to know what they cost, and the router has heard of it."""
    usual = [request("usual", 0.15 * n) for n in range(12)]
    send_from(Target(served.url, served.model, served.keys), plan_of(usual))
    wait_until(lambda: served.learned_cost() is not None, "no cost was learned", 30)
    wait_until(lambda: served.metric("inflight_kv_budget_tokens") > 0, "the router has no report", 30)
    return served


@pytest.fixture(scope="module")
def crowd(learned: Served) -> list[RequestResult]:
    """Several times what the engine can do, in three tiers."""
    return send_from(Target(learned.url, learned.model, learned.keys), plan_of(plan())).results


def of(crowd: Sequence[RequestResult], tenant: str) -> list[RequestResult]:
    return [each for each in crowd if each.tenant == tenant]


def good_share(outcomes: Sequence[RequestResult]) -> float:
    return sum(each.status == 200 and not each.error for each in outcomes) / len(outcomes)


def test_under_overload_each_request_is_answered_whole_or_refused_with_a_retry_time(
    crowd: list[RequestResult],
) -> None:
    assert {each.status for each in crowd} == {200, 503}
    for each in crowd:
        if each.status == 200:
            assert (each.error, each.completion_tokens) == ("", NEW_TOKENS)
        else:
            assert each.retry_after_s is not None
            assert each.retry_after_s >= 1


def test_requests_refused_together_get_different_retry_times(crowd: list[RequestResult]) -> None:
    waits_s = [each.retry_after_s for each in crowd if each.retry_after_s is not None]
    assert len(set(waits_s)) > len(waits_s) / 4


def test_a_refusal_at_once_takes_the_router_milliseconds(learned: Served, crowd: list[RequestResult]) -> None:
    """As it says itself: a client on a busy machine mostly waits for the machine."""
    log = learned.stack.logs / "router.log"
    refused = sum(each.is_refused for each in crowd)
    wait_until(lambda: len(_refusals(log)) >= refused, "refusals are not in the log", 10)
    at_once = (took_ms for told, took_ms in _refusals(log) if "outcome=" not in told)
    took_ms = sorted(map(float, at_once))
    assert len(took_ms) > refused / 4
    assert percentile(took_ms, 0.5) < 100


def _refusals(log: Path) -> list[tuple[str, str]]:
    return re.findall(r"status=503 (.*)total_ms=(\S+)", log.read_text(encoding="utf-8"))


def test_a_better_tier_gets_more_answers_and_no_tier_starves(crowd: list[RequestResult]) -> None:
    assert all(good_share(of(crowd, name)) > 0 for name in TENANTS)
    assert good_share(of(crowd, "hurried")) > good_share(of(crowd, "patient"))


def test_a_tenant_that_floods_takes_nothing_from_one_in_its_tier_and_is_named(
    learned: Served, crowd: list[RequestResult]
) -> None:
    assert good_share(of(crowd, "usual")) > good_share(of(crowd, "loud"))
    assert learned.metric("inflight_noisy_tenant_ratio", tenant=learned.ids["loud"]) > 2
    assert learned.metric("inflight_noisy_tenant_ratio", tenant=learned.ids["usual"]) == 0
    assert learned.metric("inflight_refused_requests_total", tier="standard", reason="busy") > 0


def test_the_learned_cost_predicts_the_engines_step_times(learned: Served, crowd: object) -> None:
    cost = learned.learned_cost()
    assert cost is not None
    full = StepShape(0, ENGINE.places, ENGINE.places * (PROMPT_TOKENS + NEW_TOKENS // 2))
    assert cost.step_ms(full) == pytest.approx(COST.step_ms(full), rel=0.25)
    labels = {"model": learned.model}
    assert learned.metric("inflight_forecasts_covered_total", **labels) > 0
    assert learned.metric("inflight_forecasts_total", **labels) > 0
    judged, missed = (
        learned.metric(f"inflight_objective_{name}_total", metric="first_token", **labels)
        for name in ("judged", "missed")
    )
    assert 0 <= missed < judged
    assert learned.metric("inflight_replica_step_cost_error_ratio", **labels) < 0.25
    assert learned.metric("inflight_replica_step_cost_frozen", **labels) == 0


def ask(served: Served, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = {"model": served.model, "prompt": [400] * 16, "max_tokens": 4, "ignore_eos": True, **more}
    key = {"authorization": f"Bearer {served.keys['usual']}"}
    url = f"{served.url}/v1/completions"
    return httpx.post(url, json=body, headers={**key, **(headers or {})}, timeout=patience(60))


def test_a_request_that_does_not_fit_even_alone_is_refused_as_too_large(
    learned: Served, crowd: object
) -> None:
    learned.wait_until_idle()
    answer = ask(learned, prompt=[400] * (ENGINE.kv_tokens + 64))
    assert answer.status_code == 413, answer.text
    assert ask(learned, prompt=[400] * (ENGINE.kv_tokens - 64)).status_code == 200


def test_a_client_may_set_how_long_it_waits(learned: Served, crowd: object) -> None:
    learned.wait_until_idle()
    hurried = ask(learned, {"x-inflight-deadline-ms": "1"})
    assert hurried.status_code == 503, hurried.text
    assert ask(learned, {"x-inflight-deadline-ms": "20000"}).status_code == 200
    unreadable = ask(learned, {"x-inflight-deadline-ms": "soon"})
    assert unreadable.status_code == 400
    assert "x-inflight-deadline-ms" in unreadable.text


def test_an_objective_is_shown_beside_what_was_measured(learned: Served, crowd: object) -> None:
    def standings() -> dict[str, dict[str, Any]]:
        (found,) = json.loads(learned.inflight("slo", "show", learned.model, "--json"))
        return {each["tier"]: each for each in found["standings"] if each["metric"] == "first_token"}

    wait_until(lambda: bool(standings()["interactive"]["samples"]), "nothing was measured", 30)
    for tier, first_s in FIRST_TOKEN_S.items():
        shown = standings()[tier.label]
        assert shown["objective_s"] == first_s
        assert 0 < shown["p50_s"] <= shown["p95_s"]
    assert "interactive" in learned.inflight("slo", "show", learned.model)
    learned.inflight("slo", "clear", learned.model, "--tier", "batch")
    assert "batch" not in {tier for tier, each in standings().items() if each["objective_s"]}


def test_the_step_budget_follows_the_objective_while_the_engine_runs(learned: Served, crowd: object) -> None:
    def step_tokens() -> float:
        """While somebody waits for the next token."""
        found = [learned.triton_metric("inflight_engine_step_limit_tokens")]
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(ask, learned, max_tokens=2 * NEW_TOKENS)
            while not running.done():
                found.append(learned.triton_metric("inflight_engine_step_limit_tokens"))
        return min(found)

    def falls_below(tokens: float) -> bool:
        return step_tokens() < tokens

    assert step_tokens() == ENGINE.step_tokens
    # 0.9 of it, less what a step takes anyway, leaves about 240 tokens of a prompt.
    learned.inflight("slo", "set", learned.model, "--tier", "all", "--inter-token", "36ms")
    wait_until(lambda: falls_below(0.7 * ENGINE.step_tokens), "the budget did not follow", 30)
    tight = step_tokens()
    learned.inflight("slo", "set", learned.model, "--tier", "all", "--inter-token", "28ms")
    wait_until(lambda: falls_below(0.8 * tight), "the budget did not follow the second objective", 30)
    learned.inflight("slo", "set", learned.model, "--tier", "all", "--inter-token", "none")
    time.sleep(1)
    wait_until(lambda: not falls_below(ENGINE.step_tokens), "the budget did not come back", 30)
