from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from python_backend.costs.batch_cost import BatchCost
from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.wire.engine_report import EngineReport
from python_backend.wire.tiers import Tier
from router.admission.capacity import (
    UNKNOWN,
    UNLIMITED,
    BatchShape,
    CacheWindow,
    Capacity,
    fitted,
    of_batches,
    of_engines,
    with_slots,
)
from router.admission.demand import Demand, Need, Refused
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths
from router.admission.queue import EqualShares
from router.core.record import Record

REPORT = EngineReport(
    max_batch_size=8,
    max_step_tokens=256,
    most_batch_size=16,
    most_step_tokens=512,
    total_blocks=100,
    used_blocks=10,
    tokens_per_block=16,
    active=3,
    waiting=1,
    holds_whole_answers=False,
    learned=LearnedStepCost(StepCost(10.0, 0.1, 0.2, 0.3), 500, 0.02),
)
WINDOWS = st.builds(
    CacheWindow, st.integers(1, 500).map(lambda each: 16 * each), st.integers(1, 6), st.booleans()
)


def test_capacity_is_the_sum_of_what_the_engines_can_take_now() -> None:
    slower = replace(
        REPORT, max_batch_size=4, learned=LearnedStepCost(StepCost(20.0, 0.3, 0.4, 0.5), 99, 0.1)
    )
    found = of_engines([REPORT, slower])
    assert (found.replicas, found.slots, found.kv_tokens, found.step_tokens) == (2, 12, 3200, 256)
    assert found.step == StepCost(15.0, 0.2, 0.30000000000000004, 0.4)


def test_capacity_is_unlimited_where_no_engine_reports() -> None:
    assert of_engines([]) == UNKNOWN
    assert of_engines([None, None]) == replace(UNKNOWN, replicas=2)


def test_an_engine_without_a_report_counts_like_the_others() -> None:
    assert of_engines([REPORT, None]) == of_engines([REPORT, REPORT])
    found = of_engines([REPORT, replace(REPORT, max_batch_size=4), None])
    assert (found.replicas, found.slots, found.kv_tokens) == (3, 18, 4800)


def test_an_engine_without_a_cache_has_no_cache_limit() -> None:
    assert of_engines([replace(REPORT, total_blocks=0)]).kv_tokens is None


def test_an_engine_that_has_learned_nothing_still_has_slots() -> None:
    found = of_engines([replace(REPORT, learned=None)])
    assert (found.slots, found.step) == (8, None)


def test_of_a_batch_model_one_batch_runs_while_the_next_gathers() -> None:
    cost = BatchCost(1.0, 0.1)
    assert of_batches(2, BatchShape(64), cost) == Capacity(2, 256, batch=cost)
    assert of_batches(1, BatchShape(8, instances=3), None).slots == 48
    assert of_batches(3, BatchShape(0), None).slots == 6


def test_decoupled_models_and_ensembles_have_unlimited_slots() -> None:
    assert of_batches(2, BatchShape(8, is_decoupled=True), None).slots == UNLIMITED
    assert of_batches(2, BatchShape(8, instances=0), None).slots == UNLIMITED
    assert of_batches(2, None, None).slots == UNLIMITED


def test_of_what_answers_as_often_as_it_likes_nothing_is_predicted() -> None:
    assert of_batches(1, BatchShape(8, is_decoupled=True), BatchCost(1.0, 0.1)).batch is None


def test_an_operator_has_the_last_word_about_slots() -> None:
    capacity = of_engines([REPORT])
    assert with_slots(capacity, 0) is capacity
    assert with_slots(capacity, 3).slots == 3
    assert with_slots(capacity, -1).slots == UNLIMITED


@given(
    prompt=st.integers(0, 100_000),
    completion=st.integers(1, 100_000),
    sequences=st.integers(1, 2048),
    slots=st.integers(1, 256),
    blocks=st.integers(10, 5000),
    holds_whole_answers=st.booleans(),
    window=st.none() | WINDOWS,
)
def test_what_can_run_in_parts_is_admitted_and_what_does_not_fit_alone_is_not(
    prompt: int,
    completion: int,
    sequences: int,
    slots: int,
    blocks: int,
    holds_whole_answers: bool,
    window: CacheWindow | None,
) -> None:
    kv_tokens = 16 * blocks
    capacity = Capacity(1, slots, kv_tokens, 16, holds_whole_answers=holds_whole_answers, window=window)
    need = fitted(Need(prompt, completion, sequences), capacity)
    assert need.prompt_tokens <= prompt
    assert need.completion_tokens <= completion
    assert 1 <= need.sequences <= max(sequences, 1)
    dispatcher = Dispatcher(EqualShares(), OutputLengths())
    dispatcher.resize(capacity)
    tokens = (need.prompt_tokens, need.completion_tokens, need.sequences)
    entry = dispatcher.offer(Demand("a", Tier.STANDARD, *tokens, 0.0, 60.0), Record("test", "req"), 0.0)
    alone = prompt + (completion if holds_whole_answers else 1)
    if window is not None:
        alone = window.taken(alone)
    assert isinstance(entry, Refused) == (sequences == 1 and alone > kv_tokens)


@given(window=WINDOWS, tokens=st.integers(0, 100_000))
def test_how_long_a_sequence_is_follows_from_what_it_takes_of_the_cache(
    window: CacheWindow, tokens: int
) -> None:
    found = window.tokens_in(window.taken(tokens))
    assert found == (tokens if window.keeps_all else min(tokens, window.tokens))


def test_the_window_of_a_models_layers_is_known_from_its_engines() -> None:
    assert of_engines([REPORT]).window is None
    gemma = replace(REPORT, window_tokens=560, window_blocks=6)
    assert of_engines([gemma, None]).window == CacheWindow(560, 6)


@given(rows=st.integers(1, 2048), slots=st.integers(1, 512))
def test_however_many_rows_there_are_they_take_the_slots_that_there_are(rows: int, slots: int) -> None:
    assert fitted(Need(0, 0, rows), Capacity(1, slots)) == Need(0, 0, min(rows, slots))
