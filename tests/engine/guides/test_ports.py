"""Requests with a guide: prepared beside the engine, joined when ready, and held to it."""

from __future__ import annotations

import pytest

from python_backend.engine.engine import Engine
from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.report import FinishReason
from python_backend.engine.request import GenerationRequest, Guide, GuideKind
from python_backend.engine.scheduling.plan import Chunk
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier
from tests.engine.drained import answers_of, drain
from tests.fakes.executor import FakeClock, FakeLaunched, continuation, fake_engine
from tests.fakes.guides import FakeCompiler, only


def test_a_guide_is_compiled_before_its_request_joins_and_no_other_request_waits() -> None:
    compiler = FakeCompiler()
    engine, _ = fake_engine(compiler=compiler)
    engine.add(1, GenerationRequest([1], 9, guide=only(5, 6, 7)))
    assert (engine.has_work, engine.can_step) == (True, False)
    assert engine.step() == []
    assert (engine.gauges().waiting, engine.gauges().step_count) == (1, 0)
    engine.add(2, GenerationRequest([2], 2))
    assert engine.can_step
    assert [event.key for event in engine.step()] == [2]
    compiler.finish()
    answers = drain(engine)
    assert answers[1] == ([5, 6, 7], FinishReason.STOP_WORDS)
    assert answers[2] == (continuation([2], 2)[1:], FinishReason.LENGTH)


def test_a_guided_request_keeps_its_position_in_the_queue() -> None:
    compiler = FakeCompiler()
    engine, _ = fake_engine(compiler=compiler, max_batch_size=1)
    for key in range(3):
        engine.add(key, GenerationRequest([key], 1, guide=only(5) if key == 1 else None))
    engine.step()
    compiler.finish()
    assert [event.key for _ in range(2) for event in engine.step()] == [1, 2]


def test_each_sequence_follows_the_guide_independently() -> None:
    compiler = FakeCompiler()
    engine, _ = fake_engine(compiler=compiler)
    engine.add(1, GenerationRequest([1, 2, 3], 9, guide=only(5, 6, 7), num_return_sequences=3))
    assert len(compiler.asked) == 1
    compiler.finish()
    assert answers_of(engine) == {(1, index): ([5, 6, 7], FinishReason.STOP_WORDS) for index in range(3)}


def test_a_guide_that_cannot_be_compiled_is_refused() -> None:
    compiler = FakeCompiler()
    engine, _ = fake_engine(compiler=compiler)
    engine.add(1, GenerationRequest([1], 9, guide=only(5), num_return_sequences=2))
    compiler.refuse(InflightError(ErrorKind.INVALID_REQUEST, "no such language"))
    events = engine.step()
    assert [(event.sequence_index, event.error) for event in events] == [
        (0, "invalid_request: no such language"),
        (1, "invalid_request: no such language"),
    ]
    assert not engine.has_work


def test_a_request_can_be_cancelled_while_its_guide_is_being_compiled() -> None:
    compiler = FakeCompiler()
    engine, _ = fake_engine(compiler=compiler)
    engine.add(1, GenerationRequest([1], 9, guide=only(5)))
    (_, future) = compiler.asked[0]
    engine.cancel(1)
    assert engine.can_step
    assert [event.finish_reason for event in engine.step()] == [FinishReason.CANCELLED]
    assert future.cancelled()
    assert not engine.has_work
    engine.add(1, GenerationRequest([1], 1))
    compiler.finish()
    assert drain(engine) == {1: (continuation([1], 1), FinishReason.LENGTH)}


def test_abort_ends_requests_whose_guides_are_being_compiled() -> None:
    compiler = FakeCompiler()
    engine, _ = fake_engine(compiler=compiler)
    engine.add(1, GenerationRequest([1], 9, guide=only(5)))
    assert [event.error for event in engine.abort("engine_failed: gone")] == ["engine_failed: gone"]
    compiler.finish()
    assert engine.step() == []


def test_without_a_compiler_a_guide_is_refused_by_name() -> None:
    engine, _ = fake_engine()
    with pytest.raises(
        InflightError, match=r"guided decoding \(json_schema\) is not supported here"
    ) as raised:
        engine.add(1, GenerationRequest([1], 9, guide=Guide(GuideKind.JSON_SCHEMA, "{}")))
    assert raised.value.kind is ErrorKind.UNSUPPORTED
    assert not engine.has_work


def may_step(engine: Engine) -> bool:
    return engine.can_step


def test_a_slow_guide_delays_its_own_sequence_and_no_other() -> None:
    compiler, clock = FakeCompiler(), FakeClock()
    engine, executor = fake_engine(compiler=compiler, now_ns=clock)
    engine.add(1, GenerationRequest([1], 9, guide=only(5, 6, 7)))
    engine.add(2, GenerationRequest([2], 6))
    compiler.finish()
    assert {event.key: event.token_ids for event in engine.step()}[1] == [5]
    compiler.pace.is_ready = False
    clock.now_ns += 10**9
    for _ in range(3):
        assert [event.key for event in engine.step()] == [2]
    assert may_step(engine)
    assert (engine.gauges().running, compiler.pace.waits) == (2, 0)
    compiler.pace.is_ready = True
    answers = drain(engine)
    assert answers[1] == ([6, 7], FinishReason.STOP_WORDS)
    assert answers[2] == (continuation([2], 6)[4:], FinishReason.LENGTH)
    assert all(len(chunks) <= 2 for chunks in executor.steps)


def test_a_step_waits_briefly_for_a_guide_and_no_longer() -> None:
    compiler, clock = FakeCompiler(), FakeClock()
    engine, _ = fake_engine(compiler=compiler, now_ns=clock)
    engine.add(1, GenerationRequest([1], 9, guide=only(5, 6)))
    compiler.finish()
    engine.step()
    compiler.pace.is_ready = False
    assert may_step(engine)
    assert engine.step() == []
    assert compiler.pace.waits == 1
    clock.now_ns += 10**7
    assert not may_step(engine)
    assert engine.step() == []
    assert compiler.pace.waits == 1
    engine.add(2, GenerationRequest([2], 1))
    assert [event.key for event in engine.step()] == [2]
    engine.cancel(1)
    assert may_step(engine)
    assert drain(engine) == {1: ([], FinishReason.CANCELLED)}


def test_others_wait_for_a_guide_for_a_tenth_of_a_step_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, clock = FakeCompiler(), FakeClock(look_ns=0)
    engine, executor = fake_engine(compiler=compiler, now_ns=clock)
    launch = executor.launch

    def launch_in_8_ms(chunks: list[Chunk], copies: list[BlockCopy]) -> FakeLaunched:
        clock.now_ns += 8_000_000
        return launch(chunks, copies)

    monkeypatch.setattr(executor, "launch", launch_in_8_ms)
    compiler.pace.clock = clock

    def took_ns() -> int:
        began_ns = clock.now_ns
        engine.step()
        return clock.now_ns - began_ns

    engine.add(1, GenerationRequest([1], 9, guide=only(5, 6)))
    compiler.finish()
    assert took_ns() == 8_000_000
    compiler.pace.is_ready = False
    assert took_ns() == 5_000_000  # for one that is alone
    compiler.pace.is_ready = True
    assert took_ns() == 8_000_000
    compiler.pace.is_ready = False
    engine.add(2, GenerationRequest([2], 4))
    assert took_ns() == 8_000_000 + 800_000  # the other's first step
    assert took_ns() == 8_000_000  # it is not worth any more


def test_a_preempted_sequence_does_not_come_back_before_its_guide_is_ready() -> None:
    compiler, clock = FakeCompiler(), FakeClock()
    engine, _ = fake_engine(compiler=compiler, max_batch_size=1, now_ns=clock)
    engine.add(1, GenerationRequest([1], 9, guide=only(5, 6), tier=Tier.BATCH))
    compiler.finish()
    engine.step()
    compiler.pace.is_ready = False
    clock.now_ns += 10**7
    engine.add(2, GenerationRequest([2], 2, tier=Tier.INTERACTIVE))
    engine.add(3, GenerationRequest([3], 1, tier=Tier.BATCH))
    assert [event.key for _ in range(4) for event in engine.step()] == [2, 2, 3]
    assert not may_step(engine)
    compiler.pace.is_ready = True
    assert may_step(engine)
    assert drain(engine) == {1: ([6], FinishReason.STOP_WORDS)}
