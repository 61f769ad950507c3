"""Prices in engine time and cache."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from python_backend.costs.batch_cost import BatchCost
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.admission.capacity import CacheWindow, Capacity
from router.admission.demand import Demand
from router.admission.forecast import Expected
from router.admission.running import kv_need, least_kv, prices_of

ENGINE = Capacity(1, 64, 40_000, 16, step=StepCost(12.0, 0.12, 0.25, 1.0))


def demand(prompt: int = 100, most: int = 400, sequences: int = 1) -> Demand:
    return Demand("a", Tier.STANDARD, prompt, most, sequences, 0.0, 1.0)


def test_a_request_costs_its_prompt_and_its_part_of_the_steps_that_generate_it() -> None:
    prices = prices_of(ENGINE, batch=48)
    # 0.12 a prompt token; 12/48 + 0.25 for each of 200, and 0.2 for the 200 tokens that each reads.
    assert prices.of(demand(), Expected(150, 400, 200)) == (12_000, 12_000 + 200 * (500 + 200))
    assert prices.is_known


def test_a_row_costs_its_part_of_a_batch() -> None:
    prices = prices_of(Capacity(1, 64, batch=BatchCost(8.0, 0.5)), batch=32)
    assert prices.of(demand(0, 0, 4), Expected(0, 0, 0)) == (4 * 750, 4 * 750)


def test_all_rows_are_priced_however_few_are_in_flight_at_once() -> None:
    prices = prices_of(Capacity(1, 64, batch=BatchCost(8.0, 0.5)), batch=32)
    many = replace(demand(0, 0, 64), rows=2048)
    assert prices.of(many, Expected(0, 0, 0)) == (2048 * 750, 2048 * 750)


def test_without_learned_costs_a_generated_token_costs_twice_a_prompt_token() -> None:
    prices = prices_of(Capacity(1, 64), batch=1)
    assert not prices.is_known
    assert prices.tokens_us(10, 0) == 2 * 10 * prices.prompt_token_us


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 16), st.sampled_from([1, 16, 64]))
def test_cache_demand_is_counted_in_whole_blocks(prompt: int, each: int, sequences: int, block: int) -> None:
    capacity = Capacity(1, 64, 40_000, block)
    wanted = demand(prompt, 5000 * sequences, sequences)
    need = kv_need(wanted, each, capacity)
    assert need % block == 0
    assert prompt + each * sequences <= need < prompt + each * sequences + block * (sequences + 1)
    assert least_kv(wanted, capacity) <= max(need, kv_need(wanted, 1, capacity))


def test_an_engine_that_holds_whole_answers_needs_their_cache_at_once() -> None:
    whole = Capacity(1, 64, 40_000, 16, holds_whole_answers=True)
    assert least_kv(demand(100, 400), whole) == 512
    assert least_kv(demand(100, 400), ENGINE) == 112


def test_a_window_is_reserved_beside_the_tokens_that_other_layers_keep() -> None:
    gemma = replace(ENGINE, window=CacheWindow(560, 6))
    assert kv_need(demand(100, 400), 60, gemma) == 160 + 6 * 160
    assert kv_need(demand(10_000, 400), 240, gemma) == 10_240 + 6 * 560
    assert kv_need(demand(10_000, 400, 2), 100, gemma) == 10_208 + 16 + 2 * 6 * 560
    assert kv_need(demand(10_000, 400), 240, replace(ENGINE, window=CacheWindow(560, 1, False))) == 560
