"""Who gets how much of the engine over time, and whether forecasts come true, on a simulated engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from python_backend.wire.tiers import Tier
from router.admission.demand import Demand, Reason
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths
from router.admission.queue import EqualShares, Shares
from tests.fakes.stepping_engine import COST, Job, SteppingEngine

if TYPE_CHECKING:
    from router.admission.policy import Policy

PATIENCE_S = {Tier.INTERACTIVE: 1.0, Tier.STANDARD: 3.0, Tier.BATCH: 30.0}


@dataclass(frozen=True)
class Weights:
    of: dict[str, float]

    def weight(self, tenant: str) -> float:
        return self.of[tenant]

    def slot_share(self, tenant: str) -> float:
        return 1.0


def policy(shares: Shares | None = None) -> Dispatcher:
    return Dispatcher(EqualShares() if shares is None else shares, OutputLengths())


def job(
    tenant: str, prompt: int, tokens: int, at_s: float, tier: Tier = Tier.STANDARD, wait_s: float = 1e6
) -> Job:
    return Job(Demand(tenant, tier, prompt, 1024, 1, at_s, at_s + wait_s), tokens)


def backlog(tenant: str, prompt: int, tokens: int, count: int, at_s: float = 0.0) -> list[Job]:
    return [job(tenant, prompt, tokens, at_s) for _ in range(count)]


def mixed(rate: float, lasting_s: float, seed: int = 1, tenants: int = 20) -> list[Job]:
    chance = random.Random(seed)
    jobs = []
    at_s = chance.expovariate(rate)
    while at_s < lasting_s:
        tier = chance.choices(list(Tier), (0.4, 0.4, 0.2))[0]
        prompt = min(2000, max(5, int(chance.lognormvariate(5, 1))))
        tokens = min(1024, max(1, int(chance.lognormvariate(5.3, 0.8))))
        jobs.append(job(f"t{chance.randrange(tenants)}", prompt, tokens, at_s, tier, PATIENCE_S[tier]))
        at_s += chance.expovariate(rate)
    return jobs


def goodput(policy: Policy, jobs: list[Job], lasting_s: float) -> float:
    SteppingEngine(policy).run(jobs, lasting_s)
    return sum(each.is_good for each in jobs) / lasting_s


def jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def test_q1_two_backlogged_tenants_get_equal_service_though_one_asks_eight_times_as_much() -> None:
    engine = SteppingEngine(policy(), kv_tokens=None, slots=32)
    engine.run(backlog("small", 50, 40, 3000) + backlog("large", 400, 320, 600), 2.0)
    start = dict(engine.served)
    # What both can have under way at once: every entry with the longest answer, at the price of a token.
    token_ms = COST.base_ms / 32 + COST.decode_sequence_ms
    bound = 2 * max(COST.prefill_token_ms * 400, token_ms * 32 * (400 + 320))
    for second in range(3, 63):
        engine.run([], float(second))
        assert abs(engine.served["small"] - engine.served["large"]) <= bound
    service = [engine.served[name] - start[name] for name in ("small", "large")]
    assert jain(service) >= 0.99


def test_q2_weights_of_three_to_one_give_three_quarters() -> None:
    engine = SteppingEngine(policy(Weights({"paid": 3.0, "free": 1.0})), kv_tokens=None, slots=32)
    engine.run(backlog("paid", 100, 100, 3000) + backlog("free", 100, 100, 3000), 60.0)
    assert engine.served["paid"] / sum(engine.served.values()) == pytest.approx(0.75, abs=0.03)


def test_q3_a_tenant_returning_from_idle_has_no_saved_credit() -> None:
    engine = SteppingEngine(policy(), kv_tokens=None, slots=32)
    both = backlog("busy", 100, 100, 4000) + backlog("idle", 100, 100, 50)
    engine.run([*both, *backlog("idle", 100, 100, 2000, at_s=60.0)], 60.0)
    before = dict(engine.served)
    engine.run([], 70.0)
    gained = {name: engine.served[name] - before[name] for name in ("busy", "idle")}
    assert gained["idle"] / sum(gained.values()) <= 0.52


@pytest.mark.parametrize("rate", [8.0, 30.0])
def test_q6_nine_of_ten_first_tokens_come_within_their_forecast(
    rate: float, figure: Callable[[str], None]
) -> None:
    jobs = mixed(rate, 110.0)
    SteppingEngine(policy()).run(jobs, 110.0)
    settled = [each.entry for each in jobs if each.entry is not None and each.demand.arrived_s > 20]
    covered = [entry.was_covered for entry in settled if entry.was_covered is not None]
    assert len(covered) > 400
    share = sum(covered) / len(covered)
    figure(f"{100 * share:.0f} % at {rate:g} a second")
    assert 0.85 <= share <= 0.95


def test_far_beyond_capacity_as_much_is_on_time_as_at_the_peak_and_tiers_get_their_shares() -> None:
    peak = goodput(policy(), mixed(10.0, 60.0), 60.0)
    jobs = mixed(75.0, 60.0)
    assert goodput(policy(), jobs, 60.0) >= 0.95 * peak
    work = dict.fromkeys(Tier, 0.0)
    for each in jobs:
        work[each.demand.tier] += 0.12 * each.computed_tokens + 0.5 * each.completion_tokens
    for tier, weight in zip(Tier, (0.6, 0.3, 0.1), strict=True):
        assert work[tier] / sum(work.values()) >= 0.8 * weight
    waited = sorted(
        each.waited_s for each in jobs if each.waited_s is not None and each.demand.tier is Tier.INTERACTIVE
    )
    assert waited[int(0.95 * len(waited))] <= PATIENCE_S[Tier.INTERACTIVE]


def test_a_flood_costs_other_tenants_less_than_a_tenth() -> None:
    """From when the engine is full on: what has begun by then runs to its end."""

    def calm() -> list[Job]:
        jobs = mixed(4.0, 80.0, tenants=8)
        return [each for each in jobs if each.demand.tier is Tier.INTERACTIVE and each.demand.arrived_s > 10]

    alone, others = calm(), calm()
    SteppingEngine(policy()).run(alone, 80.0)
    chance = random.Random(2)
    tokens = [max(1, int(chance.lognormvariate(5.1, 0.7))) for _ in range(21 * 80)]
    flood = [job("flood", 150, each, at / 21, Tier.INTERACTIVE, 1.0) for at, each in enumerate(tokens)]
    dispatcher = policy()
    SteppingEngine(dispatcher).run(others + flood, 80.0)
    assert sum(each.is_good for each in others) >= 0.9 * sum(each.is_good for each in alone)
    noisy = dispatcher.signals(80.0).noisy
    assert noisy is not None
    assert noisy.tenant == "flood"
    assert noisy.times_over > 2


def test_a_large_patient_request_does_not_starve_behind_smaller_ones_in_better_tiers() -> None:
    """A large request in the worst tier, while the others have more to do than there is time."""
    large = Job(Demand("large", Tier.BATCH, 25_000, 5000, 1, 1.0, 601.0), 50)
    others = [
        job(f"t{number % 5}", 200, 150, number / 20, tier, PATIENCE_S[tier])
        for number in range(20 * 120)
        for tier in (Tier.STANDARD,)
    ]
    SteppingEngine(policy()).run([large, *others], 120.0)
    assert large.first_token_s is not None


def test_without_a_cost_requests_are_admitted_by_slots_and_cache_alone() -> None:
    dispatcher = policy()
    jobs = mixed(20.0, 20.0)
    engine = SteppingEngine(dispatcher, tells_cost=False)
    engine.run(jobs, 20.0)
    assert not [each for each in jobs if each.refused is not None and each.refused.reason is Reason.BUSY]
    assert all(each.entry is None or each.entry.forecast_s is None for each in jobs)
    assert dispatcher.signals(20.0).drain_s is None
