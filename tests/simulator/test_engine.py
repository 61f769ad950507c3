"""The reckoned engine against the real one on a clock of its own: token for token the same times."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from simulator.engine import EngineShape, SimulatedEngine
from simulator.request import SimulatedRequest
from simulator.slowness import Slowness
from tests.fakes.timed_engine import Asked, Course, play
from tests.tiers import examples

COST = StepCost(12.0, 0.12, 0.25, 0.05)


def reckoned(asked: list[Asked], shape: EngineShape) -> tuple[Course, SimulatedEngine]:
    engine = SimulatedEngine("one", shape)
    course, coming = Course(), list(enumerate(asked))
    while coming or engine.next_s < float("inf"):
        if coming and coming[0][1].at_s < engine.next_s:
            key, each = coming.pop(0)
            request = SimulatedRequest(
                key, each.at_s, "", each.tier, each.prompt_tokens, each.output_tokens, each.output_tokens
            )
            engine.add(request, each.at_s)
            continue
        now_s, told = engine.next_s, engine.finish()
        course.first_s.update({request.number: now_s for request in told.first_tokens})
        course.last_s.update({request.number: now_s for request in told.ended})
    course.preemptions = engine.preemptions
    return course, engine


def both(asked: list[Asked], shape: EngineShape) -> tuple[Course, Course]:
    sizes = shape.total_blocks, shape.slots, shape.step_tokens
    real = play(
        asked,
        shape.cost,
        *sizes,
        shape.holds_whole_answers,
        shape.depth,
        launches_late=shape.ahead_s < inf,
        reuses_blocks=shape.reuses_blocks,
    )
    return real, reckoned(asked, shape)[0]


def crowd(seed: int, count: int, tiers: bool) -> list[Asked]:
    chance = random.Random(seed)
    at_s, asked = 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(12.0)
        tier = chance.choice(list(Tier)) if tiers else Tier.STANDARD
        asked.append(Asked(at_s, chance.randint(1, 300), chance.randint(1, 80), tier))
    return asked


@pytest.mark.parametrize("whole_answers", [True, False])
@pytest.mark.parametrize(("kv_tokens", "depth"), [(16_000, 1), (1_600, 1), (16_000, 2)])
def test_simulated_tokens_come_when_those_of_the_real_engine_do(
    whole_answers: bool, kv_tokens: int, depth: int
) -> None:
    shape = EngineShape(COST, 8, 64, kv_tokens, 16, whole_answers, depth, inf, reuses_blocks=False)
    real, ours = both(crowd(1, 120, tiers=False), shape)
    assert ours.first_s == pytest.approx(real.first_s, abs=1e-6)
    assert ours.last_s == pytest.approx(real.last_s, abs=1e-6)
    assert ours.preemptions == real.preemptions
    assert whole_answers or kv_tokens > 5_000 or real.preemptions > 0


def test_a_preempted_request_finds_the_blocks_again_that_nobody_has_taken_as_in_the_real_engine() -> None:
    calm = [Asked(0.0, 200, 100, Tier.BATCH), Asked(1.0, 40, 20, Tier.INTERACTIVE)]
    shape = EngineShape(COST, 1, 64, 16_000, depth=1)
    (real, ours), anew = both(calm, shape), both(calm, replace(shape, reuses_blocks=False))[1]
    assert real.preemptions == 1
    assert ours.last_s == pytest.approx(real.last_s, abs=1e-6)
    assert ours.last_s[0] < anew.last_s[0] - 0.03
    crowded = replace(shape, kv_tokens=20 * 16)
    real, ours = both([calm[0], Asked(1.0, 200, 20, Tier.INTERACTIVE)], crowded)
    assert ours.last_s == pytest.approx(real.last_s, abs=1e-6)


def test_whoever_comes_before_a_step_is_launched_is_in_it_as_with_the_real_engine() -> None:
    shape = EngineShape(COST, 32, 512, 64_000)
    asked = crowd(2, 600, tiers=False)
    (real, ours), early = both(asked, shape), both(asked, replace(shape, ahead_s=inf))[1]
    waited_s = {key: real.first_s[key] - each.at_s for key, each in enumerate(asked)}
    off_s = [abs(ours.first_s[key] - real.first_s[key]) for key in list(waited_s)[100:]]
    assert sum(off_s) < 0.05 * sum(list(waited_s.values())[100:])
    assert sum(ours.first_s.values()) < sum(early.first_s.values())


@settings(deadline=None, max_examples=examples(15))
@given(
    st.integers(0, 10_000),
    st.booleans(),
    st.sampled_from([24, 64, 400]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
@example(6207, False, 24, 1, False)  # all that run are preempted at once, and nobody comes
@example(8418, False, 64, 2, False)  # the furthest off of 1,200
def test_with_preempting_tiers_the_simulated_engine_ends_when_the_real_one_does(
    seed: int, whole_answers: bool, blocks: int, depth: int, reuses_blocks: bool
) -> None:
    shape = EngineShape(COST, 6, 48, 16 * blocks, 16, whole_answers, depth, inf, reuses_blocks)
    real, ours = both(crowd(seed, 25, tiers=True), shape)
    assert ours.last_s.keys() == real.last_s.keys()
    assert max(ours.last_s.values()) == pytest.approx(max(real.last_s.values()), rel=0.1)
    assert sum(ours.first_s.values()) == pytest.approx(sum(real.first_s.values()), rel=0.15)


def test_a_long_answer_alone_is_a_handful_of_events_however_many_tokens_it_has() -> None:
    engine = SimulatedEngine("one", EngineShape(COST))
    request = SimulatedRequest(0, 0.0, "", Tier.STANDARD, 100, 10_000, 10_000)
    engine.add(request, 0.0)
    events = 0
    while engine.next_s < float("inf"):
        engine.finish()
        events += 1
    assert request.ended_s is not None
    assert events <= 3


@pytest.mark.parametrize(
    ("prompt", "chunks"), [(400, [(0, 400)]), (1200, [(0, 512), (512, 512), (1024, 176)])]
)
def test_a_prompt_takes_longer_the_more_it_looks_back_at(prompt: int, chunks: list[tuple[int, int]]) -> None:
    shape = EngineShape(StepCost(10.0, 0.1, 0.0), even_context=1000)
    first_s = reckoned([Asked(0.0, prompt, 1, Tier.STANDARD)], shape)[0].first_s[0]
    took_ms = sum(10.0 + 0.1 * count * (1 + (start + count / 2) / 1000) for start, count in chunks)
    assert first_s == pytest.approx(took_ms / 1000)


def test_steps_take_as_many_times_as_long_as_the_processor_makes_them_when_they_begin() -> None:
    slowness = Slowness((1.0, 2.0), every_s=10.0)
    shape = EngineShape(StepCost(1000.0, 0.0, 0.0), slowness=slowness)
    asked = [Asked(at_s, 5, 1, Tier.STANDARD) for at_s in (0.0, 11.0, 21.0)]
    firsts_s = reckoned(asked, shape)[0].first_s
    assert [firsts_s[key] - each.at_s for key, each in enumerate(asked)] == pytest.approx([1.0, 2.0, 1.0])


def test_tokens_are_counted_between_the_events() -> None:
    engine = SimulatedEngine("one", EngineShape(StepCost(10.0, 0.0, 0.0)))
    request = SimulatedRequest(0, 0.0, "", Tier.STANDARD, 10, 100, 100)
    engine.add(request, 0.0)
    engine.finish()
    for now_s, tokens in ((0.0101, 1), (0.0201, 2), (0.5001, 50), (0.9999, 99)):
        engine.look(now_s)
        assert request.completion_tokens == tokens


def test_no_cache_is_held_after_all_requests_ended() -> None:
    for whole_answers in (True, False):
        shape = EngineShape(COST, slots=6, step_tokens=48, kv_tokens=1600, holds_whole_answers=whole_answers)
        report = reckoned(crowd(3, 60, tiers=True), shape)[1].report()
        assert (report.used_blocks, report.active) == (0, 0)


def test_an_inter_token_objective_makes_the_steps_shorter() -> None:
    def p95_s(target_ms: float | None) -> float:
        engine = SimulatedEngine("one", EngineShape(COST), {Tier.STANDARD: target_ms})
        for number in range(20):
            engine.add(SimulatedRequest(number, 0.0, "", Tier.STANDARD, 2000, 50, 50), 0.0)
        while engine.next_s < float("inf"):
            engine.finish()
        found = engine.gaps.percentile_s(Tier.STANDARD, 0.95)
        assert found is not None
        return found

    assert p95_s(None) > 0.06
    assert p95_s(40.0) <= 0.041
