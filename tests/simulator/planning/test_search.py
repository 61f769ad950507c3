"""The cheapest fleet: what it costs, what is spare, and where its figures come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traces import Shape, synthetic_trace
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.core.objective import Objective
from simulator.planning.fitting import fitted_cost
from simulator.planning.profiles import Profile, best_of, known_profiles
from simulator.planning.search import NoFleet, find, with_spare
from simulator.planning.silicon import ModelShape, SiliconTables, Table, TablesError
from simulator.planning.whatifs import WhatIf, answers
from simulator.planning.wish import Survives, Traffic, Wish

TRACE = synthetic_trace(0, 60.0, Shape(requests_per_s=5.0, output_median_tokens=30.0, longest_tokens=200))
OBJECTIVES = {Tier.STANDARD: Objective("m", Tier.STANDARD, 2.0, 0.2)}
SLOW = Profile("old", "tiny", "bf16", 1, 30.0, 0.3, 1.0, 0.1, 100_000, 1.0, 64, 2048, 0.05, "measured here")
FAST = replace(SLOW, gpu="new", base_ms=10.0, prefill_token_ms=0.1, decode_sequence_ms=0.3)
WISH = Wish("tiny", Traffic(TRACE, 40.0), OBJECTIVES, {"old": 1.0, "new": 2.0}, survives=Survives.NOTHING)


def test_the_cheapest_kind_wins_and_what_it_costs_adds_up() -> None:
    plan = find(WISH, [SLOW, FAST])
    best = plan.best
    assert best.profile.gpu == "new"
    assert best.needed * best.capacity.per_s >= 40.0 > (best.needed - 1) * best.capacity.per_s
    assert best.dollars_per_h == best.replicas * 2.0
    tokens = 3600 * 40.0 * (WISH.traffic.prompt_tokens + WISH.traffic.output_tokens)
    assert best.dollars_per_million == pytest.approx(1e6 * best.dollars_per_h / tokens)
    more = answers(plan, WhatIf.RATE)[0]
    assert more.replicas >= best.replicas
    longer = answers(plan, WhatIf.PROMPTS)[0]
    assert longer.replicas >= best.replicas


def test_objectives_that_nobody_keeps_have_no_fleet() -> None:
    hard = {Tier.STANDARD: Objective("m", Tier.STANDARD, 0.001, 0.001)}
    with pytest.raises(NoFleet, match="no replica keeps"):
        find(replace(WISH, objectives=hard), [SLOW])


@given(st.integers(1, 5000), st.integers(2, 6), st.sampled_from([1, 2, 4, 8]))
def test_what_may_be_lost_leaves_enough(needed: int, zones: int, parallel: int) -> None:
    of = {kind: with_spare(needed, replace(WISH, zones=zones, survives=kind), parallel) for kind in Survives}
    assert of[Survives.NOTHING] == needed
    assert of[Survives.REPLICA] == needed + 1
    assert of[Survives.HOST] - 8 // parallel >= needed
    assert of[Survives.ZONE] - of[Survives.ZONE] // zones >= needed
    assert of[Survives.ZONE] % zones == 0


def test_profiles_say_where_they_come_from_and_measured_ones_go_first() -> None:
    known = known_profiles()
    assert all(each.origin and each.base_ms > 0 and each.kv_tokens > 0 for each in known)
    h200 = [
        each
        for each in best_of(known)
        if (each.gpu, each.model, each.precision, each.tensor_parallel) == ("h200", "llama-8b", "bf16", 1)
    ]
    assert len(h200) == 1
    assert h200[0].is_measured


def test_a_cost_is_found_again_from_its_own_steps() -> None:
    cost = StepCost(4.0, 0.03, 0.02, 0.01)
    features = [(1.0, p, b, b * c / 1000) for p in (0, 512, 2048) for b in (1, 32, 256) for c in (256, 2048)]
    times = [cost.base_ms + 0.03 * p + 0.02 * b + 0.01 * kv for _, p, b, kv in features]
    found, error = fitted_cost(features, times)
    assert found == cost
    assert error < 1e-9


def test_tables_are_interpolated_and_say_what_lies_beyond_them() -> None:
    table = Table({(n, m): float(n * m) for n in (1, 4, 16) for m in (1, 8)})
    inside, is_beyond = table.at(8, 4)
    assert inside == pytest.approx(32.0)
    assert not is_beyond
    outside, is_beyond = table.at(32, 8)
    assert outside == pytest.approx(256.0)
    assert is_beyond


def test_tables_of_a_directory_become_a_cost(tmp_path: Path) -> None:
    folder = tmp_path / "aiconfigurator/systems/data/x1_sxm/trtllm/1.0"
    folder.mkdir(parents=True)
    (tmp_path / "aiconfigurator/systems/x1_sxm.yaml").write_text("gpu:\n  mem_capacity: 80000000000\n")
    sizes = [2**power for power in range(18)]
    gemm = [f"float16,{m},{n},{k},{0.001 + 1e-12 * m * n * k}" for m in sizes[:14] for n in sizes[7:17]
            for k in sizes[7:16]]  # fmt: skip
    (folder / "gemm_perf.txt").write_text("\n".join(["gemm_dtype,m,n,k,latency", *gemm]))
    head = "num_heads,num_key_value_heads,attn_dtype,kv_cache_dtype"
    each = "8,8,float16,float16"
    prompts = [f"{each},{b},{isl},0.01" for b in (1, 8) for isl in sizes[4:15]]
    steps = [f"{each},{b},{step},0.01" for b in sizes[:12] for step in sizes]
    prompts.insert(0, f"{head},batch_size,isl,latency")
    (folder / "context_attention_perf.txt").write_text("\n".join(prompts))
    (folder / "generation_attention_perf.txt").write_text(
        "\n".join([f"{head},batch_size,step,latency", *steps])
    )
    tables = SiliconTables(tmp_path)
    found = tables.derive("x1", ModelShape(2, 1024, 4096, 8, 8, 32000), "bf16", 1)
    assert found.cost.base_ms > 0
    assert found.memory_bytes == 8e10
    assert "x1_sxm" in found.origin
    with pytest.raises(TablesError, match="there are x1"):
        tables.derive("h9", ModelShape(2, 1024, 4096, 8, 8, 32000), "bf16", 1)
    with pytest.raises(TablesError, match="no tables"):
        SiliconTables(folder)
