"""What requests share: prompts that begin alike, and the several sequences of one request."""

from __future__ import annotations

import pytest

from python_backend.engine.kv.prefix_cache import Keep, keep_of
from python_backend.engine.report import FinishReason
from python_backend.engine.request import GenerationRequest, Retention, RetentionRange, SamplingParams
from python_backend.wire.tiers import Tier
from tests.engine.drained import answers_of, drain, events_of
from tests.fakes.executor import FakeClock, continuation, fake_engine

SYSTEM_PROMPT = [7] * 40


@pytest.mark.parametrize("guaranteed_no_evict", [False, True])
@pytest.mark.parametrize("max_step_tokens", [16, 1024])
def test_a_system_prompt_shared_by_a_hundred_requests_is_computed_once(
    guaranteed_no_evict: bool, max_step_tokens: int
) -> None:
    engine, executor = fake_engine(
        total_blocks=2000,
        max_batch_size=16,
        max_step_tokens=max_step_tokens,
        guaranteed_no_evict=guaranteed_no_evict,
    )
    for key in range(100):
        engine.add(key, GenerationRequest([*SYSTEM_PROMPT, key % 90, key // 90], 3))
    answers = drain(engine)
    assert answers == {
        key: (continuation([*SYSTEM_PROMPT, key % 90, key // 90], 3), FinishReason.LENGTH)
        for key in range(100)
    }
    own_tokens = 2 + 3 - 1
    assert executor.computed_tokens == len(SYSTEM_PROMPT) + 100 * own_tokens
    assert engine.gauges().reused_blocks == 99 * 10


def test_a_repeated_prompt_costs_its_last_block() -> None:
    engine, executor = fake_engine()
    for key in range(2):
        engine.add(key, GenerationRequest(SYSTEM_PROMPT, 1))
        (event,) = events_of(engine)
        assert event.token_ids == continuation(SYSTEM_PROMPT, 1)
        assert event.perf is not None
        assert (event.perf.reused_blocks, event.perf.alloc_new_blocks) == ((0, 10), (9, 1))[key]
        assert event.perf.alloc_total_blocks == 10
    assert executor.computed_tokens == 40 + 4
    assert (engine.gauges().reused_blocks, engine.gauges().new_blocks) == (9, 11)


def test_an_answer_is_reused_as_the_beginning_of_the_next_prompt() -> None:
    engine, executor = fake_engine()
    engine.add(1, GenerationRequest(SYSTEM_PROMPT, 8))
    (answer, _) = drain(engine)[1]
    before = executor.computed_tokens
    prompt = [*SYSTEM_PROMPT, *answer, 1]
    engine.add(2, GenerationRequest(prompt, 1))
    assert drain(engine)[2][0] == continuation(prompt, 1)
    assert executor.computed_tokens - before == len(prompt) - 44


def test_different_salts_share_nothing() -> None:
    engine, executor = fake_engine()
    for key, salt in enumerate(("one", "two", "one")):
        engine.add(key, GenerationRequest(SYSTEM_PROMPT, 1, cache_salt=salt))
        drain(engine)
    assert executor.computed_tokens == 40 + 40 + 4


def test_a_shared_beginning_is_computed_once_for_all_salts_and_nothing_behind_it_is_shared() -> None:
    engine, executor = fake_engine()
    prompt = [*SYSTEM_PROMPT, *range(50, 60)]
    computed = []
    for key, salt in enumerate(("one", "two", "one")):
        before = executor.computed_tokens
        engine.add(key, GenerationRequest(prompt, 1, cache_salt=salt, shared_tokens=len(SYSTEM_PROMPT)))
        assert drain(engine)[key][0] == continuation(prompt, 1)
        computed.append(executor.computed_tokens - before)
    assert computed == [50, 10, 2]


@pytest.mark.parametrize("shared_tokens", [0, 1, 3, 5, 39])
def test_a_block_that_is_shared_in_part_is_not_shared(shared_tokens: int) -> None:
    engine, executor = fake_engine()
    for key, salt in enumerate(("one", "two")):
        engine.add(key, GenerationRequest(SYSTEM_PROMPT, 1, cache_salt=salt, shared_tokens=shared_tokens))
        drain(engine)
    assert executor.computed_tokens == 80 - shared_tokens // 4 * 4


def test_a_shared_beginning_is_none_of_those_who_were_not_told_of_it() -> None:
    """One salt's own blocks stay apart from the shared ones, be they the same tokens."""
    engine, executor = fake_engine()
    engine.add(1, GenerationRequest(SYSTEM_PROMPT, 1, cache_salt="one"))
    engine.add(2, GenerationRequest(SYSTEM_PROMPT, 1, cache_salt="one", shared_tokens=40))
    drain(engine)
    assert executor.computed_tokens == 80


def test_a_caller_cannot_have_a_shared_beginning_given_up_or_kept() -> None:
    for priority in (0, 100):
        retention = Retention((RetentionRange(0, None, priority),))
        request = GenerationRequest([*SYSTEM_PROMPT, 1], 1, retention=retention, shared_tokens=40)
        assert keep_of(request, 0) is keep_of(request, 36) is None
        assert keep_of(request, 40) == Keep(priority)


def test_a_caller_who_asks_to_keep_everything_for_ever_leaves_others_their_cache() -> None:
    clock = FakeClock()
    engine, executor = fake_engine(total_blocks=40, now_ns=clock)

    def computed_for(key: int, token: int, retention: Retention | None = None) -> int:
        before = executor.computed_tokens
        kept = retention or Retention()
        engine.add(key, GenerationRequest([token] * 40, 1, retention=kept, cache_salt=str(token)))
        drain(engine)
        return executor.computed_tokens - before

    for_ever = Retention((RetentionRange(0, None, 100),), decode_priority=100)
    for key in range(10):
        computed_for(key, key, for_ever)
    for key in range(20, 22):
        computed_for(key, 50 + key)
    assert computed_for(30, 50 + 20) == 4  # there is room for the prompts of others
    clock.now_ns += 601_000_000_000
    for key in range(40, 44):
        computed_for(key, key)
    assert computed_for(50, 0) == 40  # what was to be kept for ever has made way


def test_reuse_can_be_switched_off() -> None:
    engine, executor = fake_engine(enable_kv_cache_reuse=False)
    for key in range(2):
        engine.add(key, GenerationRequest(SYSTEM_PROMPT, 1))
        drain(engine)
    assert executor.computed_tokens == 80
    assert (engine.gauges().reused_blocks, engine.gauges().cached_blocks) == (0, 0)


def test_cached_blocks_are_free_and_used_ones_are_held() -> None:
    engine, _ = fake_engine(total_blocks=20)
    engine.add(1, GenerationRequest(SYSTEM_PROMPT, 1))
    drain(engine)
    now = engine.gauges()
    assert (now.cached_blocks, now.free_blocks, now.used_blocks) == (10, 20, 0)


def test_a_retained_prompt_outlives_the_others_until_its_time_is_over() -> None:
    clock = FakeClock()
    engine, executor = fake_engine(total_blocks=12, now_ns=clock)

    def computed_for(key: int, prompt_ids: list[int], retention: Retention | None = None) -> int:
        before = executor.computed_tokens
        engine.add(key, GenerationRequest(prompt_ids, 1, retention=retention or Retention()))
        drain(engine)
        return executor.computed_tokens - before

    kept = Retention((RetentionRange(0, None, 90, duration_ms=1000),))
    assert computed_for(1, [1] * 17, kept) == 17
    for key in range(2, 6):
        assert computed_for(key, [key] * 21) == 21
    assert computed_for(6, [1] * 17) == 1
    clock.now_ns += 2_000_000_000
    for key in range(7, 10):
        computed_for(key, [key] * 21)
    assert computed_for(10, [1] * 17) == 17


def test_a_prompt_whose_scores_are_requested_is_computed_whole() -> None:
    engine, executor = fake_engine()
    engine.add(1, GenerationRequest(SYSTEM_PROMPT, 1))
    drain(engine)
    engine.add(2, GenerationRequest(SYSTEM_PROMPT, 1, returns_context_logits=True))
    drain(engine)
    assert executor.computed_tokens == 80


@pytest.mark.parametrize("prompt_tokens", [1, 2, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("guaranteed_no_evict", [False, True])
def test_several_sequences_of_one_request_compute_its_prompt_once(
    prompt_tokens: int, guaranteed_no_evict: bool
) -> None:
    engine, executor = fake_engine(guaranteed_no_evict=guaranteed_no_evict)
    prompt = list(range(prompt_tokens))
    engine.add(1, GenerationRequest(prompt, 6, num_return_sequences=3, sampling=SamplingParams(seed=5)))
    assert answers_of(engine) == {
        (1, index): (continuation(prompt, 6, 5, index), FinishReason.LENGTH) for index in range(3)
    }
    assert executor.computed_tokens == (prompt_tokens - 1) + 3 * 6
    assert len(executor.copies) == (2 if (prompt_tokens - 1) % 4 else 0)
    assert engine.pool.used_blocks == 0


def test_sequences_without_a_slot_beside_the_first_come_later() -> None:
    engine, _ = fake_engine(max_batch_size=3)
    engine.configure(max_batch_size=1)
    prompt = [1, 2, 3, 4, 5, 6]
    engine.add(1, GenerationRequest(prompt, 4, num_return_sequences=3))
    assert answers_of(engine) == {
        (1, index): (continuation(prompt, 4, 0, index), FinishReason.LENGTH) for index in range(3)
    }


def test_a_sequence_joins_only_if_there_is_a_block_for_its_copy() -> None:
    engine, executor = fake_engine(total_blocks=2, guaranteed_no_evict=True)
    prompt = [1, 2, 3, 4, 5, 6]
    engine.add(1, GenerationRequest(prompt, 2, num_return_sequences=2))
    assert answers_of(engine) == {
        (1, index): (continuation(prompt, 2, 0, index), FinishReason.LENGTH) for index in range(2)
    }
    assert executor.copies == []


def test_a_static_batch_takes_all_sequences_of_a_request_at_once() -> None:
    engine, executor = fake_engine(static_batching=True)
    engine.add(1, GenerationRequest([1, 2, 3, 4, 5, 6], 4, num_return_sequences=3))
    engine.step()
    assert engine.gauges().running == 3
    assert len(answers_of(engine)) == 3
    assert executor.copies == []


def test_a_cancel_ends_every_sequence_of_its_request() -> None:
    engine, _ = fake_engine(max_batch_size=3)
    engine.configure(max_batch_size=2)
    engine.add(1, GenerationRequest([1, 2, 3], 20, num_return_sequences=3))
    for _ in range(3):
        engine.step()
    assert (engine.gauges().running, engine.gauges().waiting) == (2, 1)
    engine.cancel(1)
    ends = {event.sequence_index: event.finish_reason for event in engine.step()}
    assert ends == dict.fromkeys(range(3), FinishReason.CANCELLED)
    assert not engine.has_work


def test_every_sequence_has_the_context_logits_with_its_first_token() -> None:
    engine, executor = fake_engine(max_step_tokens=8)
    prompt = list(range(11))
    engine.add(1, GenerationRequest(prompt, 2, num_return_sequences=2, returns_context_logits=True))
    events = events_of(engine)
    first = [event for event in events if event.context_logits is not None]
    assert [event.sequence_index for event in first] == [0, 1]
    assert first[0].context_logits == first[1].context_logits
    assert len(first[0].context_logits or b"") == 4 * len(prompt)
    assert executor.computed_tokens == 10 + 2 * 2


def test_preempted_sequences_of_one_request_continue_where_they_were() -> None:
    engine, _ = fake_engine(max_batch_size=2, total_blocks=30)
    engine.add(1, GenerationRequest([1, 2, 3, 4, 5, 6], 10, num_return_sequences=2, tier=Tier.BATCH))
    for _ in range(4):
        engine.step()
    for key in (2, 3):
        engine.add(key, GenerationRequest([key], 3, tier=Tier.INTERACTIVE))
    answers = answers_of(engine)
    assert engine.gauges().preemptions == 2
    # What was said before the preemption is not in here.
    for index in range(2):
        whole = continuation([1, 2, 3, 4, 5, 6], 10, 0, index)
        assert answers[1, index][0] == whole[-len(answers[1, index][0]) :]
