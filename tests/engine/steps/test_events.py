from __future__ import annotations

from python_backend.engine.report import FinishReason
from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.wire.tiers import Tier
from tests.engine.drained import events_of
from tests.fakes.executor import FakeClock, continuation, fake_engine, logits_row


def test_requested_log_probs_and_logits_come_with_the_tokens() -> None:
    engine, _ = fake_engine()
    prompt, answer = [1, 2, 3], continuation([1, 2, 3], 2)
    request = GenerationRequest(
        prompt, 2, returns_log_probs=True, returns_context_logits=True, returns_generation_logits=True
    )
    engine.add(1, request)
    first, second = events_of(engine)
    assert (first.log_probs, second.log_probs) == ([-1.0], [-2.0])
    assert first.context_logits == b"".join(logits_row(prompt[:end]) for end in (1, 2, 3))
    assert second.context_logits is None
    assert first.generation_logits == logits_row(prompt)
    assert second.generation_logits == logits_row([*prompt, answer[0]])


def test_top_log_probs_come_only_with_the_tokens_of_requests_that_asked() -> None:
    engine, _ = fake_engine()
    engine.add(1, GenerationRequest([1, 2, 3], 2, top_log_probs=2))
    engine.add(2, GenerationRequest([1, 2, 3], 2))
    events = events_of(engine)
    tops = [event.top_log_probs for event in events if event.key == 1]
    assert tops == [[[(token_id, -1.0)] * 3] for token_id in continuation([1, 2, 3], 2)]
    assert all(event.top_log_probs is None for event in events if event.key == 2)


def test_prompt_log_probs_cover_the_whole_prompt_and_come_with_the_first_token() -> None:
    engine, executor = fake_engine(max_batch_size=2, max_step_tokens=3)
    prompt = list(range(10))
    for key in (1, 2):  # the second could have found the prompt in the cache
        engine.add(key, GenerationRequest(prompt, 2, top_log_probs=0, returns_prompt_log_probs=True))
        first, second = events_of(engine)
        assert first.top_log_probs is not None
        assert [row[0][0] for row in first.top_log_probs] == [*prompt[1:], first.token_ids[0]]
        assert second.top_log_probs == [[(second.token_ids[0], -1.0)]]
    assert len(executor.steps) > 4


def test_the_first_token_reports_how_much_of_the_prompt_was_cached() -> None:
    engine, _ = fake_engine()
    prompt = list(range(10))
    for key, expected in ((1, 0), (2, 8)):
        engine.add(key, GenerationRequest(prompt, 3))
        perfs = [event.perf for event in events_of(engine)]
        assert [perf and perf.cached_tokens for perf in perfs] == [expected, None, expected]


def test_context_logits_are_gathered_over_the_chunks_of_a_prompt() -> None:
    engine, executor = fake_engine(max_batch_size=2, max_step_tokens=3)
    prompt = list(range(10))
    engine.add(1, GenerationRequest(prompt, 2, returns_context_logits=True))
    first, _ = events_of(engine)
    assert first.context_logits == b"".join(logits_row(prompt[: end + 1]) for end in range(10))
    assert len(executor.steps) > 4


def test_context_logits_are_whole_after_a_preemption_in_the_middle_of_the_prompt() -> None:
    engine, _ = fake_engine(max_batch_size=1, max_step_tokens=3)
    prompt = list(range(10))
    engine.add(1, GenerationRequest(prompt, 2, returns_context_logits=True, tier=Tier.BATCH))
    engine.step()
    engine.step()
    engine.add(2, GenerationRequest([5], 1, tier=Tier.INTERACTIVE))
    (first,) = [event for event in events_of(engine) if event.context_logits is not None]
    assert first.context_logits == b"".join(logits_row(prompt[: end + 1]) for end in range(10))


def test_an_omitted_end_id_has_no_log_probs_or_logits() -> None:
    engine, _ = fake_engine()
    end_id = continuation([1, 2, 3], 1)[0]
    request = GenerationRequest(
        [1, 2, 3], 5, end_id=end_id, returns_log_probs=True, sampling=SamplingParams(min_tokens=0)
    )
    engine.add(1, request)
    (event,) = events_of(engine)
    assert (event.token_ids, event.log_probs, event.generation_logits) == ([], None, None)
    assert event.finish_reason is FinishReason.END_ID


def test_the_times_of_a_sequence_are_accurate() -> None:
    clock = FakeClock()
    engine, _ = fake_engine(max_batch_size=1, now_ns=clock)
    engine.add(1, GenerationRequest([1], 2), arrival_ns=500_000)
    engine.add(2, GenerationRequest([2], 3))
    arrived_ns = clock.now_ns
    perfs = {event.key: event.perf for event in events_of(engine) if event.perf}
    first, second = perfs[1], perfs[2]
    assert first.arrival_ns == 500_000
    assert second.arrival_ns == arrived_ns
    for perf in (first, second):
        assert perf.arrival_ns < perf.first_scheduled_ns < perf.first_token_ns < perf.last_token_ns
    assert second.first_scheduled_ns > first.last_token_ns


def test_a_sequence_that_never_ran_has_no_times_but_its_arrival() -> None:
    engine, _ = fake_engine()
    engine.add(1, GenerationRequest([1], 2), arrival_ns=500_000)
    engine.cancel(1)
    (event,) = events_of(engine)
    assert event.perf is not None
    assert event.perf.arrival_ns == 500_000
    assert event.perf.first_scheduled_ns == event.perf.first_token_ns == event.perf.last_token_ns == 0


def test_preemptions_are_counted() -> None:
    engine, _ = fake_engine(max_batch_size=1)
    engine.add(1, GenerationRequest([1], 4, tier=Tier.BATCH))
    engine.step()
    engine.add(2, GenerationRequest([2], 1, tier=Tier.STANDARD))
    perfs = {event.key: event.perf for event in events_of(engine) if event.perf}
    assert (perfs[1].preemptions, perfs[2].preemptions) == (1, 0)
