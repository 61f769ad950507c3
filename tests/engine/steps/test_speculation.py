"""Guessed tokens: answers stay what they are, and guesses end where they do not pay."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.report import SequenceEvent
from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.engine.scheduling.plan import StepPlan
from python_backend.engine.scheduling.speculation import ApartCosts, Guess, RowCosts, Step, worthwhile
from python_backend.engine.steps.meter import StepMeter
from python_backend.engine.steps.recall import EarlierAnswers, Trail
from tests.engine.checkpoints import VOCABULARY, random_variant, save
from tests.engine.drained import events_of

# A row more costs next to nothing: whatever can be guessed is.
CHEAP = LearnedStepCost(StepCost(10.0, 0.001, 1.0), samples=1000, error=0.01)
guesses = st.builds(Guess, st.integers(0, 16), st.floats(0, 0.98))


def on_a_cpu(rows: int, takes_ms: float, guess_ms: float) -> Step:
    costs = RowCosts()
    costs.observe(rows=4, takes_ms=4 * guess_ms, guesses=4, more_ms=4 * guess_ms)
    return Step(rows, takes_ms, partial(costs.extra_ms, rows, takes_ms))


@given(
    st.lists(guesses, max_size=8),
    st.builds(on_a_cpu, st.integers(1, 64), st.floats(0.1, 100), st.floats(0.001, 10)),
    st.integers(0, 40),
)
def test_guesses_never_make_a_step_slower_for_its_tokens(
    offers: list[Guess], step: Step, most_rows: int
) -> None:
    chosen = worthwhile(offers, step, most_rows)
    assert sum(chosen) <= most_rows
    assert all(0 <= count <= offer.tokens for count, offer in zip(chosen, offers, strict=True))
    expected = sum(
        offer.chance**number
        for offer, count in zip(offers, chosen, strict=True)
        for number in range(1, count + 1)
    )
    rate = (step.tokens + expected) / step.with_guesses_ms(sum(chosen))
    assert rate >= step.tokens / step.takes_ms * (1 - 1e-9)


def test_guesses_pay_in_small_batches_and_not_in_large_ones() -> None:
    def rows(batch: int, chance: float) -> int:
        step = on_a_cpu(batch, 8.0 + batch, 1.0)
        return sum(worthwhile([Guess(8, chance)] * batch, step, 512))

    assert rows(1, 0.9) == 7, "eight rows in all, which are computed four together"
    assert rows(1, 0.1) == 0
    assert 0 < rows(8, 0.7) < 64
    assert rows(64, 0.8) == 0


def test_what_guesses_take_on_a_cpu_is_learned() -> None:
    costs = RowCosts()
    assert costs.extra_ms(4, 12.5, 4) == 12.5, "as much as the four rows that are there"
    for _ in range(60):
        costs.observe(rows=4, takes_ms=12.5, guesses=4, more_ms=10.2)
    assert costs.extra_ms(4, 12.5, 4) == pytest.approx(10.2, rel=0.01)
    step = Step(4, 12.5, partial(costs.extra_ms, 4, 12.5))
    assert sum(worthwhile([Guess(8, 0.7)] * 4, step, 64)) == 0, "each takes about what a token takes anyway"
    costs.observe(rows=3, takes_ms=12.5, guesses=1, more_ms=-0.5)


def test_where_steps_overlap_guesses_pay_for_the_one_that_does_not() -> None:
    costs = ApartCosts()

    def rows(batch: int, chance: float) -> int:
        step = Step(batch, 4.0, partial(costs.extra_ms, batch, 4.0))
        return sum(worthwhile([Guess(15, chance)] * batch, step, 512))

    assert rows(1, 0.9) == 15, "as many as fit into the size that is computed anyway"
    assert rows(1, 0.2) == 0, "a token in four would not pay for two fifths of a step"
    for _ in range(60):
        costs.observe(rows=1, takes_ms=4.0, guesses=15, more_ms=0.2)
    assert rows(1, 0.2) > 0, "but for a twentieth"
    costs.observe(rows=1, takes_ms=4.0, guesses=15, more_ms=4000.0)
    assert rows(1, 0.2) > 0, "one that something held up says little"
    for _ in range(60):
        costs.observe(rows=1, takes_ms=4.0, guesses=15, more_ms=40.0)
    assert rows(1, 0.9) != 15, "steps of that size are known to take long"


def test_the_longest_and_then_the_latest_place_says_what_may_follow() -> None:
    trail = Trail()
    trail.follow([1, 2, 3, 4, 9, 2, 3, 4, 5, 7, 2, 3, 4])
    assert trail.after([7, 2, 3, 4], 2) == ([5, 7], 3)
    assert trail.after([1, 2, 3, 4], 3) == ([9, 2, 3], 4)
    assert trail.after([8, 8, 8], 3) == ([], 0)
    trail.follow([*trail.tokens, 6])
    assert trail.after([7, 2, 3, 4], 2) == ([6], 4)


def test_what_repeats_itself_is_guessed_to_go_on_so() -> None:
    trail = Trail()
    trail.follow([9, 1, 2, 1, 2, 1])
    assert trail.after([1, 2, 1], 5) == ([2, 1, 2, 1, 2], 3)
    trail.extend([-1])
    assert trail.after([1, 2, 1], 5) == ([2, 1], 3), "an earlier answer ended there"


def test_a_long_prompt_is_read_in_parts_and_of_a_very_long_one_the_end() -> None:
    trail, tokens = Trail(), [number % 1777 for number in range(5000)]
    for expected in (1024, 2048, 3072):
        trail.follow(tokens, first=1000)
        assert len(trail.tokens) == expected
    for _ in range(5):
        trail.follow(tokens, first=1000)
    assert trail.tokens == tokens[1000:]
    assert trail.after(tokens[-5:], 3)[0] == [(tokens[-1] + number) % 1777 for number in (1, 2, 3)]


def test_earlier_answers_are_for_whom_they_were() -> None:
    earlier = EarlierAnswers()
    earlier.remember("ann", [1, 2, 3, 4, 5])
    earlier.remember("ann", [6, 7, 8])
    assert earlier.after("ann", [1, 2, 3], 9) == ([4, 5], 3)
    assert earlier.after("bob", [1, 2, 3], 9) == ([], 0)
    for number in range(100):
        earlier.remember(number, [1, 2, 3, 4])
    assert earlier.after("ann", [1, 2, 3], 9) == ([], 0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(
        random_variant("llama", initializer_range=0.1), tmp_path_factory.mktemp("speculation") / "model"
    )


def engine_of(checkpoint: Path, speculates: bool, **changes: Any) -> Engine:
    config = EngineConfig(
        str(checkpoint),
        max_tokens_in_kv_cache=4096,
        precision="fp32",
        packed_cache_dir=str(checkpoint / "packed"),
        threads=1,
        check_blocks=True,
        speculates=speculates,
    )
    return settled(build_engine(replace(config, **changes)))


def settled(engine: Engine) -> Engine:
    """It knows what steps take, whatever they take."""
    engine._meter = _Settled(CHEAP)
    return engine


class _Settled(StepMeter):
    """Learns nothing more: what steps take here and now must not decide what a test sees."""

    def over(self, plan: StepPlan, now_ns: int) -> int:
        began_ns = super().over(plan, now_ns)
        self.learned = CHEAP
        return began_ns


def answers(events: list[SequenceEvent]) -> dict[tuple[int, int], tuple[Any, ...]]:
    found: dict[tuple[int, int], tuple[Any, ...]] = {}
    for event in events:
        name = (event.key, event.sequence_index)
        ids, log_probs, _ = found.get(name, ([], [], None))
        log_probs = log_probs + (event.log_probs or [])
        found[name] = (ids + event.token_ids, log_probs, (event.finish_reason, event.error))
    return found


# Text that repeats itself, so that there is something to guess.
REPEATED = [5, 9, 13, 22, 40, 41, 7] * 6
DRAWN = SamplingParams(temperature=0.7, top_p=0.95, top_k=20, seed=11)
ASKED = {
    "greedy": GenerationRequest(REPEATED, 60),
    "drawn": GenerationRequest(REPEATED, 60, sampling=DRAWN),
    "colder": GenerationRequest(REPEATED, 60, sampling=replace(DRAWN, temperature=0.1)),
    "penalised": GenerationRequest(REPEATED, 40, sampling=replace(DRAWN, repetition_penalty=1.3, min_p=0.05)),
    "decaying": GenerationRequest(
        REPEATED, 40, sampling=replace(DRAWN, top_p_decay=0.9, top_p_reset_id=9, temperature=0.3)
    ),
    "with log probs": GenerationRequest(REPEATED, 30, returns_log_probs=True),
    "with words that stop": GenerationRequest(REPEATED, 60, stop_sequences=((13, 22), (7,))),
    "with words that may not come": GenerationRequest(REPEATED, 40, bad_sequences=((9, 13), (40,))),
    "several": GenerationRequest(
        REPEATED, 30, sampling=replace(DRAWN, temperature=0.4), num_return_sequences=3
    ),
    "short": GenerationRequest(REPEATED, 2),
    "with an end": GenerationRequest(REPEATED, 60, end_id=22),
}


def test_every_kind_of_answer_is_the_same_with_guesses_and_without(checkpoint: Path) -> None:
    """To the last token, how it ended, and its log probabilities; alone and all together."""
    plain, guessing = engine_of(checkpoint, False), engine_of(checkpoint, True)
    expected: dict[tuple[int, int], tuple[Any, ...]] = {}
    for key, asked in enumerate(ASKED.values()):
        plain.add(key, asked)
        expected |= answers(events_of(plain))
        guessing.add(key, asked)
        found = answers(events_of(guessing))
        assert found == {name: each for name, each in expected.items() if name[0] == key}
    gauges = guessing.gauges()
    assert 0 < gauges.accepted_drafts < gauges.drafted_tokens
    assert gauges.generated_tokens > gauges.sequence_steps
    assert plain.gauges().drafted_tokens == 0
    together = engine_of(checkpoint, True)
    for key, asked in enumerate(ASKED.values()):
        together.add(key, asked)
    assert answers(events_of(together)) == expected


def test_under_preemption_answers_stay_the_same(checkpoint: Path) -> None:
    tight = {"max_tokens_in_kv_cache": 320, "guaranteed_no_evict": False, "max_sequence_tokens": 128}
    plain, guessing = engine_of(checkpoint, False), engine_of(checkpoint, True, **tight)
    expected: dict[tuple[int, int], tuple[Any, ...]] = {}
    for key in range(6):
        asked = GenerationRequest([*REPEATED, key], 60, sampling=replace(DRAWN, seed=key, temperature=0.2))
        plain.add(key, asked)
        expected |= answers(events_of(plain))
        guessing.add(key, asked)
    assert answers(events_of(guessing)) == expected
    assert guessing.gauges().preemptions > 0
    assert guessing.gauges().accepted_drafts > 0


def test_an_answer_is_guessed_from_an_earlier_one_of_the_same_tenant(checkpoint: Path) -> None:
    """What is drawn with another prompt's words is unlike its own beginning, and like the earlier answer."""
    engine = engine_of(checkpoint, True)
    prompt = [(37 * i * i + 11) % VOCABULARY for i in range(30)]
    asked = GenerationRequest(prompt, 40, sampling=replace(DRAWN, temperature=1.0), tenant="ann")

    def accepted(request: GenerationRequest, key: int) -> int:
        before = engine.gauges().accepted_drafts
        engine.add(key, request)
        events_of(engine)
        return engine.gauges().accepted_drafts - before

    first = accepted(asked, 1)
    assert accepted(replace(asked, tenant="bob"), 2) <= first + 2
    assert accepted(asked, 3) > 20


def test_the_end_of_an_answer_tells_how_many_guesses_came_true(checkpoint: Path) -> None:
    engine = engine_of(checkpoint, True)
    engine.add(1, ASKED["greedy"])
    last = events_of(engine)[-1]
    assert last.perf is not None
    assert last.perf.drafted_tokens >= last.perf.accepted_drafts > 0


def test_without_a_learned_cost_nothing_is_guessed(checkpoint: Path) -> None:
    engine = engine_of(checkpoint, True)
    engine._meter = StepMeter()
    engine.add(1, replace(ASKED["greedy"], max_new_tokens=6))
    events_of(engine)
    assert engine.gauges().drafted_tokens == 0
