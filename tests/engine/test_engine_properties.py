"""Random arrivals, lengths, cancels, limits and failures: whatever happens, the engine's promises hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_backend.engine import engine as engine_module
from python_backend.engine.engine import Engine
from python_backend.engine.kv.window_claims import Window
from python_backend.engine.report import FinishReason
from python_backend.engine.request import GenerationRequest, Retention, RetentionRange, SamplingParams
from python_backend.engine.scheduling.batch import may_pause
from python_backend.engine.sequence import Sequence
from python_backend.wire.tiers import Tier
from tests.fakes.executor import VOCABULARY, FakeClock, FakeExecutor, continuation, fake_engine
from tests.fakes.guides import FakeCompiler, only
from tests.tiers import examples

BROKEN, DEADLY = 91, 92

Name = tuple[int, int]


@pytest.fixture(scope="module", autouse=True)
def no_look_at_memory() -> Iterator[None]:
    """Gauges are asked for after every step, and the kernel would take a good part of the time to tell it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "resident_bytes", lambda: 0)
        yield


@dataclass
class Watcher:
    """Drives an engine and holds every answer against what the model says to that prompt alone."""

    engine: Engine
    executor: FakeExecutor
    compiler: FakeCompiler = field(default_factory=FakeCompiler)
    requests: dict[int, GenerationRequest] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    answers: dict[Name, list[int]] = field(default_factory=dict)
    ends: dict[Name, FinishReason] = field(default_factory=dict)

    def add(self, request: GenerationRequest) -> int:
        key = len(self.requests)
        self.requests[key] = request
        self.answers |= {(key, index): [] for index in range(request.num_return_sequences)}
        self.engine.add(key, request)
        return key

    def cancel(self, key: int) -> None:
        self.engine.cancel(key)
        if key in self.requests:
            self.cancelled.add(key)

    def step(self) -> None:
        must_end = {name for name in self.answers if name[0] in self.cancelled} - self.ends.keys()
        running_before = list(self.engine._scheduler.running)
        passes_before = len(self.executor.steps)
        before = self._done
        events = self.engine.step()
        for event in events:
            name = (event.key, event.sequence_index)
            assert name not in self.ends, "a sequence spoke after its end"
            is_first = not self.answers[name]
            self.answers[name] += event.token_ids
            assert (is_first or event.is_last) == (event.perf is not None)
            if event.finish_reason:
                self.ends[name] = event.finish_reason
        assert must_end <= self.ends.keys(), "a cancel took more than one step"
        moved = before != self._done
        waits = bool(self.compiler.asked) or not self.compiler.pace.is_ready
        assert moved or events or waits or not self.engine.has_work, "no progress"
        is_repeated = before[-1] and not self.executor.fail_next_choice
        # By now the limits are those that were decided on for this step, unless it was planned before.
        self.check_step(len(self.executor.steps) if is_repeated else passes_before, running_before)

    @property
    def _done(self) -> tuple[int, int, int, bool]:
        executor = self.executor
        return len(executor.steps), executor.collected_steps, executor.choices, executor.fail_next_choice

    def check_step(self, passes_before: int, running_before: list[Sequence]) -> None:
        """Its blocks the engine has checked itself."""
        self.engine._scheduler.batch.check()
        stats = self.engine.gauges()
        chunks = [chunk for part in self.executor.steps[passes_before:] for chunk in part]
        most_running = max(stats.max_batch_size, len(running_before))
        met = (*running_before, *(chunk.sequence for chunk in chunks))
        if not all(may_pause(sequence) for sequence in met):
            # Who is owed a slot runs beside those that cannot be paused again, up to what there can be.
            most_running = self.engine._scheduler.batch.most
        assert sum(chunk.count for chunk in chunks) <= max(stats.max_step_tokens, most_running)
        assert len({chunk.sequence for chunk in chunks}) == len(chunks) <= most_running
        assert stats.running <= most_running
        assert stats.active == stats.running + stats.waiting == len(self.answers) - len(self.ends)

    def finish(self) -> None:
        self.compiler.finish()
        self.compiler.pace.is_ready = True
        while self.engine.has_work:
            self.step()
        assert self.ends.keys() == self.answers.keys()
        self.engine.pool.check()
        assert self.engine.pool.used_blocks == 0
        assert not self.executor.last_tokens, "a sequence was not released"
        for name in self.answers:
            self._check_answer(name)

    def _check_answer(self, name: Name) -> None:
        request, answer, end = self.requests[name[0]], self.answers[name], self.ends[name]
        room = self.engine.limits.max_sequence_tokens - len(request.prompt_ids)
        most = min(request.max_new_tokens, room)
        whole, its_end = alone(request, name[1], most)
        if end is FinishReason.CANCELLED:
            assert name[0] in self.cancelled
            assert answer == whole[: len(answer)]
        elif end is FinishReason.ERROR:
            assert {BROKEN, DEADLY} & set(request.prompt_ids)
        else:
            assert (answer, end) == (whole, its_end)


def alone(request: GenerationRequest, index: int, most: int) -> tuple[list[int], FinishReason]:
    """What the model answers to this request when there is no other."""
    whole = continuation(request.prompt_ids, most, request.sampling.seed, index)
    if request.guide is not None:
        whole = [int(token_id) for token_id in request.guide.text.split()][:most]
    for count, token_id in enumerate(whole):
        if token_id == request.end_id and count >= request.sampling.min_tokens:
            return whole[:count], FinishReason.END_ID
        answer = whole[: count + 1]
        stops = (tuple(answer[-len(stop) :]) == stop for stop in request.stop_sequences)
        if len(answer) >= request.sampling.min_tokens and any(stops):
            return answer, FinishReason.STOP_WORDS
    return whole, FinishReason.LENGTH if len(whole) == most else FinishReason.STOP_WORDS


token_ids = st.integers(0, VOCABULARY - 1)
windows = st.builds(Window, st.integers(1, 12), st.integers(1, 3), st.booleans())
objectives = st.none() | st.dictionaries(st.sampled_from(Tier), st.none() | st.floats(1, 200))
retentions = st.builds(
    Retention,
    st.lists(
        st.builds(
            RetentionRange, st.just(0), st.just(None), st.integers(0, 100), st.none() | st.integers(0, 3)
        ),
        max_size=1,
    ).map(tuple),
    decode_priority=st.integers(0, 100),
)


@st.composite
def generation_requests(draw: st.DrawFn, max_prompt: int, max_sequences: int) -> GenerationRequest:
    alike = draw(st.integers(0, max_prompt - 1))
    own = draw(st.lists(token_ids, min_size=1, max_size=max_prompt - alike))
    return GenerationRequest(
        prompt_ids=[*range(alike), *own],
        max_new_tokens=draw(st.integers(1, 30)),
        end_id=draw(st.none() | st.just(-1) | token_ids),
        stop_sequences=draw(st.lists(st.tuples(token_ids), max_size=2).map(tuple)),
        sampling=SamplingParams(seed=draw(st.integers(0, 255)), min_tokens=draw(st.integers(0, 4))),
        num_return_sequences=draw(st.integers(1, min(3, max_sequences))),
        tier=draw(st.sampled_from(Tier)),
        cache_salt=draw(st.sampled_from(("", "salt"))),
        tenant=draw(st.sampled_from(("one", "one", "other"))),
        weight=draw(st.sampled_from((1.0, 1.0, 2.0))),
        retention=draw(retentions),
        returns_context_logits=draw(st.booleans()),
        bad_sequences=draw(st.sampled_from(((), (), (), ((1, 2),)))),
        guide=draw(st.none() | st.lists(token_ids, min_size=1, max_size=9).map(lambda ids: only(*ids))),
    )


@pytest.mark.parametrize(("depth", "has_guesses"), [(1, True), (2, False), (2, True)])
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_sequence_ends_exactly_once_with_the_answer_it_would_get_alone(
    depth: int, has_guesses: bool, data: st.DataObject
) -> None:
    tokens_per_block = data.draw(st.integers(1, 5))
    max_batch_size = data.draw(st.integers(1, 6))
    max_step_tokens = max_batch_size + data.draw(st.integers(0, 10))
    window = data.draw(st.none() | windows)
    engine, executor = fake_engine(
        data.draw(st.integers(3 * (1 + window.tables if window else 1), 20)),
        tokens_per_block,
        max_batch_size,
        max_step_tokens,
        guaranteed_no_evict=data.draw(st.booleans()),
        static_batching=data.draw(st.booleans()),
        enable_kv_cache_reuse=data.draw(st.booleans()),
        broken_token=BROKEN,
        deadly_token=DEADLY,
        depth=depth,
        compiler=(compiler := FakeCompiler()),
        now_ns=FakeClock(look_ns=5_000_000),  # so slow that every step tells what it costs
        host_blocks=data.draw(st.integers(0, 10)),
        window=window,
        guesses=random.Random(data.draw(st.integers(0, 99))) if has_guesses else None,
    )
    watcher = Watcher(engine, executor, compiler)
    requests = generation_requests(min(engine.limits.max_sequence_tokens - 1, 20), max_batch_size)
    for _ in range(data.draw(st.integers(1, 12))):
        for request in data.draw(st.lists(requests, max_size=3)):
            watcher.add(request)
        for key in data.draw(st.lists(st.sampled_from(sorted(watcher.requests) or [0]), max_size=2)):
            watcher.cancel(key)
        if data.draw(st.booleans()):
            size = data.draw(st.integers(1, max_batch_size))
            engine.configure(data.draw(st.integers(size, max_step_tokens)), size, data.draw(objectives))
        if data.draw(st.booleans()):
            compiler.finish()
        for _ in range(data.draw(st.integers(0, 4))):
            compiler.pace.is_ready = data.draw(st.booleans())
            executor.fail_next_choice = data.draw(st.integers(0, 9)) == 0
            watcher.step()
    watcher.finish()


WAYS = (
    (1, None, False),
    (2, None, False),
    (2, Window(14), False),
    (1, Window(9, 1, False), False),
    (2, Window(9, 2, False), False),
    (2, None, True),
    (2, Window(9, 2, False), True),
)
# Any two of them meet; any three do in the test above.
MEETINGS = [
    (*way, static_batching, static_batching != bool(number % 2))
    for number, way in enumerate(WAYS)
    for static_batching in (False, True)
]


@pytest.mark.parametrize(
    ("depth", "window", "has_guesses", "static_batching", "guaranteed_no_evict"), MEETINGS
)
def test_the_engines_promises_hold_over_thousands_of_steps(
    depth: int,
    window: Window | None,
    has_guesses: bool,
    static_batching: bool,
    guaranteed_no_evict: bool,
    thorough: bool,
) -> None:
    busy_steps = 1600 if thorough else 200  # then come those that are still to be answered, thousands of them
    dice = random.Random(f"{static_batching} {guaranteed_no_evict}")
    engine, executor = fake_engine(
        40,
        4,
        12,
        24,
        guaranteed_no_evict=guaranteed_no_evict,
        static_batching=static_batching,
        broken_token=BROKEN,
        deadly_token=DEADLY,
        depth=depth,
        now_ns=FakeClock(look_ns=5_000_000),  # so slow that every step tells what it costs
        host_blocks=30,
        window=window,
        guesses=random.Random(1) if has_guesses else None,
    )
    watcher = Watcher(engine, executor)
    while len(executor.steps) < busy_steps:
        if dice.random() < 0.05:
            engine.configure(inter_token_ms={tier: dice.choice((None, 2.0, 20.0, 200.0)) for tier in Tier})
        if dice.random() < 0.3:
            prompt = [dice.randrange(VOCABULARY) for _ in range(dice.choice((1, 3, 10)))]
            request = GenerationRequest(
                [*range(dice.choice((0, 0, 17, 40))), *prompt],
                dice.choice((1, 5, 20, 80)),
                sampling=SamplingParams(seed=dice.randrange(256)),
                num_return_sequences=dice.choice((1, 1, 1, 3)),
                tier=dice.choice(list(Tier)),
                tenant=dice.choice(("flood", "flood", "flood", "calm")),
                weight=1.0,
            )
            watcher.add(request)
        if dice.random() < 0.1 and watcher.requests:
            watcher.cancel(dice.randrange(len(watcher.requests)))
        watcher.step()
    watcher.finish()
    assert len(watcher.requests) > busy_steps / 4
    # Of a window the last blocks are enough.
    assert engine.gauges().reused_blocks > busy_steps / (4 if window else 2)
    assert engine.gauges().recalled_blocks > 10
    assert engine.gauges().learned is not None
    assert (engine.gauges().accepted_drafts > busy_steps / 8) == has_guesses
    assert engine.gauges().preemptions > 0 or static_batching or window
    assert engine.gauges().pauses > 0 or static_batching
