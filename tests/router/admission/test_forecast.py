"""Forecasts by values, and factors that follow what came true."""

from __future__ import annotations

import math
import random

import pytest

from python_backend.costs.batch_cost import BatchCost
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.admission.capacity import Capacity
from router.admission.demand import Demand
from router.admission.forecast import Flows, Quantile, batches_s, service_s, wait_s
from router.admission.queue import Ahead

ENGINE = Capacity(1, 64, None, step_tokens=512, step=StepCost(10.0, 0.1, 0.25))


def prefill_s(prompt_tokens: int, ahead_tokens: int = 0, sequences: int = 0) -> float:
    demand = Demand("a", Tier.STANDARD, prompt_tokens, 1, 1, 0.0, 1.0)
    return service_s(demand, ENGINE, ahead_tokens, sequences)


def test_prefill_on_an_idle_engine_takes_the_time_of_its_chunks() -> None:
    assert prefill_s(100) == pytest.approx(0.020)
    assert prefill_s(1024) == pytest.approx(0.1224)


def test_prefill_takes_longer_with_prompts_ahead_and_sequences_beside_it() -> None:
    behind = prefill_s(100, ahead_tokens=1000)
    assert behind == pytest.approx(0.1 * 1.1 + 3 * 0.01)
    assert prefill_s(100, sequences=40) == pytest.approx(0.010 + 1.5 * (0.010 + 0.010), abs=0.001)


def test_rows_are_forecast_to_wait_for_the_batches_before_them() -> None:
    capacity = Capacity(1, 64, batch=BatchCost(4.0, 0.5))  # two batches of 32
    assert batches_s(capacity, 1, 0) == pytest.approx(0.0045)
    assert batches_s(capacity, 1, 32) == pytest.approx(0.006 + 0.0125)
    assert batches_s(Capacity(2, 128, batch=BatchCost(4.0, 0.5)), 1, 32) == pytest.approx(0.0125)


def test_a_flood_counts_as_work_ahead_only_as_far_as_fair_turns_let_it() -> None:
    queue = Ahead(tier_us=60_000_000, own_us=0, round_us=100_000.0, weight=1.0, weight_of_all=2.0)
    assert queue.work_us == 100_000
    own = Ahead(tier_us=60_000_000, own_us=500_000, round_us=100_000.0, weight=1.0, weight_of_all=2.0)
    assert own.work_us == 1_100_000
    alone = Ahead(tier_us=500_000, own_us=500_000, round_us=0.0, weight=1.0, weight_of_all=1.0)
    assert alone.work_us == 500_000


def test_the_wait_is_the_work_ahead_at_the_share_of_the_tier_and_the_next_free_slot() -> None:
    queue = Ahead(tier_us=300_000, own_us=300_000, round_us=0.0, weight=1.0, weight_of_all=1.0)
    assert wait_s(queue, 1 / 64, 6_400_000, share=0.3, replicas=1) == pytest.approx(1.0 + 0.2)
    assert wait_s(queue, 1 / 64, 6_400_000, share=0.3, replicas=2) == pytest.approx(0.6)


def test_a_tier_gets_what_other_tiers_leave_but_never_less_than_its_guarantee() -> None:
    flows = Flows()
    for tick in range(1000):
        flows.add(Tier.INTERACTIVE, 4000, tick / 100)  # 0.4 of the engine
    assert flows.share(Tier.BATCH, 0.1, 1.0, 1, 10.0) == pytest.approx(0.6, abs=0.03)
    assert flows.share(Tier.BATCH, 0.7, 1.0, 1, 10.0) == 0.7
    assert flows.share(Tier.BATCH, 0.1, 0.25, 1, 10.0) == 0.25
    assert flows.share(Tier.BATCH, 0.1, 1.0, 1, 100.0) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("wanted", [0.5, 0.9])
def test_a_quantile_estimate_follows_its_samples(wanted: float) -> None:
    chance = random.Random(5)
    quantile = Quantile(wanted, 1.0)
    for scale in (1.0, 3.0):
        below = 0
        for number in range(3000):
            ratio = scale * chance.lognormvariate(0, 0.4)
            below += ratio <= quantile.value and number >= 1000
            quantile.learn(ratio)
        assert below / 2000 == pytest.approx(wanted, abs=0.02)


def test_a_quantile_without_samples_relaxes() -> None:
    quantile = Quantile(0.9, 8.0)
    for _ in range(10_000):
        quantile.relax()
    assert quantile.value == pytest.approx(1.0)


def test_a_refusal_moves_a_quantile_a_tenth_as_far_as_a_request_that_came_earlier_than_it() -> None:
    learned, relaxed = Quantile(0.9, 8.0), Quantile(0.9, 8.0)
    for quantile in (learned, relaxed):
        for _ in range(10_000):
            quantile.learn(1e9)
    highest = learned.value
    learned.learn(0.0)
    relaxed.relax()
    assert math.log(highest / learned.value) == pytest.approx(10 * math.log(highest / relaxed.value))


def test_replicas_share_the_sequences_that_run_and_the_cache_that_they_read() -> None:
    demand, costly = Demand("a", Tier.STANDARD, 100, 1, 1, 0.0, 1.0), StepCost(10.0, 0.1, 0.25, 0.5)
    one, two = (Capacity(each, 64 * each, None, step_tokens=512, step=costly) for each in (1, 2))
    assert service_s(demand, two, 0, 8, 40_000) == pytest.approx(service_s(demand, one, 0, 4, 20_000))
    assert service_s(demand, one, 0, 4, 20_000) > service_s(demand, one, 0, 4, 10_000)
