"""What steps took, from counters."""

from __future__ import annotations

import random

import pytest

from benchmarks.objectives.arena import ENGINE
from benchmarks.objectives.session import Part, SentRun, Session
from benchmarks.objectives.step_fit import step_cost
from loadtest.results import RequestResult
from python_backend.costs.step_cost import StepCost

TRUE, OTHER = StepCost(5.0, 0.02, 0.03, 0.05), StepCost(50.0, 0.2, 0.3, 0.5)
LEARNED = StepCost(4.0, 0.01, 0.06, 0.0)


def session_with(costs: dict[Part, StepCost]) -> Session:
    """Runs of fifty seconds, one for each part, whose steps take what is said."""
    chance = random.Random(1)
    session, at_s = Session(ENGINE, {}, cost=LEARNED), 0.0
    steps = busy_s = tokens = 0.0
    for part, cost in costs.items():
        run = SentRun(part.value, at_s, (0.0, 50.0), [], part)
        session.runs.append(run)
        held = 1000 // ENGINE.block_tokens * ENGINE.block_tokens
        for _ in range(100):
            sequences, prompt = chance.randint(1, 40), chance.randint(1, 2000)
            session.samples.append(sample(at_s, steps, busy_s, tokens, held))
            first_s = at_s - run.began_s + 0.25
            run.results.append(RequestResult("trace", first_s - 0.1, prompt_tokens=prompt, first_token_s=0.1))
            held_after = ENGINE.block_tokens * chance.randint(10, 500)
            mean, held = (held + held_after) / 2, held_after
            steps += 20
            tokens += 20 * sequences
            took_ms = 20 * (cost.base_ms + cost.decode_sequence_ms * sequences)
            took_ms += 20 * cost.kv_kilotoken_ms * mean / 1000 + cost.prefill_token_ms * prompt
            busy_s += took_ms / 1000
            at_s += 0.5
    return session


def sample(at_s: float, steps: float, busy_s: float, tokens: float, held: int) -> dict[str, float]:
    return {
        "at_s": at_s,
        'nv_trt_llm_general_metrics{general_type="iteration_counter",model="m"}': steps,
        'inflight_engine_busy_seconds_total{model="m"}': busy_s,
        'inflight_engine_generated_tokens_total{model="m"}': tokens,
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m"}': held / ENGINE.block_tokens,
    }


def test_a_part_is_foretold_by_what_steps_took_in_all_others() -> None:
    session = session_with({Part.TEACHING: TRUE, Part.OVERLOAD: OTHER})
    found = step_cost(session, Part.OVERLOAD)
    assert found.base_ms == pytest.approx(TRUE.base_ms, rel=0.02)
    assert found.prefill_token_ms == pytest.approx(TRUE.prefill_token_ms, rel=0.02)
    assert found.decode_sequence_ms == pytest.approx(TRUE.decode_sequence_ms, rel=0.02)
    assert found.kv_kilotoken_ms == pytest.approx(TRUE.kv_kilotoken_ms, rel=0.02)


def test_without_metrics_it_is_what_the_engine_had_learned() -> None:
    assert step_cost(Session(ENGINE, {}, cost=LEARNED), Part.LOADS) == LEARNED
