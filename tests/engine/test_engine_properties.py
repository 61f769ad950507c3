"""Random arrivals, lengths, cancels and preemptions: whatever happens, the promises of the engine hold."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_backend.engine.engine import Engine
from python_backend.engine.sequence import FinishReason, GenerationRequest, SamplingParams
from tests.fakes.executor import VOCABULARY, FakeExecutor, continuation, fake_engine


@dataclass
class Watcher:
    """Drives an engine and holds every answer against what the model says to that prompt alone."""

    engine: Engine
    executor: FakeExecutor
    max_batch_size: int
    max_step_tokens: int
    requests: dict[int, GenerationRequest] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    answers: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, FinishReason] = field(default_factory=dict)

    def add(self, request: GenerationRequest) -> int:
        key = len(self.requests)
        self.requests[key] = request
        self.answers[key] = []
        self.engine.add(key, request)
        return key

    def cancel(self, key: int) -> None:
        self.engine.cancel(key)
        if key in self.requests and key not in self.ends:
            self.cancelled.add(key)

    def step(self) -> None:
        must_end = self.cancelled - self.ends.keys()
        for output in self.engine.step():
            assert output.key not in self.ends, "a sequence spoke after its end"
            self.answers[output.key] += output.token_ids
            if output.finish_reason:
                self.ends[output.key] = output.finish_reason
        assert must_end <= self.ends.keys(), "a cancel took more than one step"
        self.check()

    def check(self) -> None:
        self.engine.pool.check()
        stats = self.engine.stats
        assert stats.running <= self.max_batch_size
        if self.executor.steps:
            chunks = self.executor.steps[-1]
            assert sum(chunk.count for chunk in chunks) <= self.max_step_tokens
            assert len({chunk.sequence for chunk in chunks}) == len(chunks) <= self.max_batch_size
        assert stats.active == stats.running + stats.waiting == len(self.requests) - len(self.ends)

    def finish(self) -> None:
        while self.engine.has_work:
            self.step()
        assert self.ends.keys() == self.requests.keys()
        assert self.engine.pool.used_blocks == 0
        for key in self.requests:
            self._check_answer(key)

    def _check_answer(self, key: int) -> None:
        request, answer, end = self.requests[key], self.answers[key], self.ends[key]
        room = self.engine.limits.max_sequence_tokens - len(request.prompt_ids)
        whole = continuation(request.prompt_ids, min(request.max_new_tokens, room), request.sampling.seed)
        assert answer == whole[: len(answer)]
        if end is FinishReason.LENGTH:
            assert len(answer) == len(whole)
        elif end is FinishReason.END_ID:
            assert whole[len(answer)] == request.end_id
            assert len(answer) >= request.sampling.min_tokens
        elif end is FinishReason.STOP_WORDS:
            assert any(tuple(answer[-len(stop) :]) == stop for stop in request.stop_sequences)
        else:
            assert end is FinishReason.CANCELLED
            assert key in self.cancelled


token_ids = st.integers(0, VOCABULARY - 1)


@st.composite
def generation_requests(draw: st.DrawFn, max_prompt: int) -> GenerationRequest:
    return GenerationRequest(
        prompt_ids=draw(st.lists(token_ids, min_size=1, max_size=max_prompt)),
        max_new_tokens=draw(st.integers(1, 30)),
        end_id=draw(st.none() | st.just(-1) | token_ids),
        stop_sequences=draw(st.lists(st.tuples(token_ids), max_size=2).map(tuple)),
        sampling=SamplingParams(seed=draw(st.integers(0, 255)), min_tokens=draw(st.integers(0, 4))),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_sequence_ends_exactly_once_with_the_answer_it_would_get_alone(
    data: st.DataObject,
) -> None:
    total_blocks, tokens_per_block = data.draw(st.integers(3, 20)), data.draw(st.integers(1, 5))
    capacity = total_blocks * tokens_per_block
    max_batch_size = data.draw(st.integers(1, 6))
    max_step_tokens = max_batch_size + data.draw(st.integers(0, 10))
    engine, executor = fake_engine(
        total_blocks,
        tokens_per_block,
        max_batch_size,
        max_step_tokens,
        guaranteed_no_evict=data.draw(st.booleans()),
        static_batching=data.draw(st.booleans()),
    )
    watcher = Watcher(engine, executor, max_batch_size, max_step_tokens)
    for _ in range(data.draw(st.integers(1, 12))):
        for request in data.draw(st.lists(generation_requests(min(capacity - 1, 20)), max_size=3)):
            watcher.add(request)
        for key in data.draw(st.lists(st.sampled_from(sorted(watcher.requests) or [0]), max_size=2)):
            watcher.cancel(key)
        for _ in range(data.draw(st.integers(0, 4))):
            watcher.step()
    watcher.finish()


@pytest.mark.parametrize("static_batching", [False, True])
@pytest.mark.parametrize("guaranteed_no_evict", [False, True])
def test_it_holds_over_thousands_of_steps(static_batching: bool, guaranteed_no_evict: bool) -> None:
    dice = random.Random(f"{static_batching} {guaranteed_no_evict}")
    engine, executor = fake_engine(
        40, 4, 12, 24, guaranteed_no_evict=guaranteed_no_evict, static_batching=static_batching
    )
    watcher = Watcher(engine, executor, 12, 24)
    while engine.stats.step_count < 3000:
        if dice.random() < 0.35:
            prompt = [dice.randrange(VOCABULARY) for _ in range(dice.choice((1, 3, 10, 60)))]
            sampling = SamplingParams(seed=dice.randrange(256))
            watcher.add(GenerationRequest(prompt, dice.choice((1, 5, 20, 80)), sampling=sampling))
        if dice.random() < 0.1 and watcher.requests:
            watcher.cancel(dice.randrange(len(watcher.requests)))
        watcher.step()
    watcher.finish()
    assert len(watcher.requests) > 500
    assert (engine.stats.preemption_count > 100) is (not guaranteed_no_evict)
