"""The step loop over a real socket pair, with a runtime that only notes what it is told."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from python_backend.engine.process import main as process
from python_backend.engine.process.handle import EngineProcess
from python_backend.engine.process.main import StepLoop, telling_where_it_is
from python_backend.engine.process.messages import (
    Cancel,
    Command,
    Configure,
    Progress,
    Start,
    Submit,
    receive_report,
    send,
)
from python_backend.engine.report import EngineBroken, FinishReason, Gauges, PerfMetrics, Ready, SequenceEvent
from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.tiers import Tier
from tests.pace import patience
from tests.waiting import wait_until


@dataclass
class NotingRuntime:
    """Work goes on until it is cancelled; while `is_preparing` there is some but no step can be made."""

    is_preparing: bool = False
    failure_at_next_step: Exception | None = None
    told: list[object] = field(default_factory=list)
    keys: set[int] = field(default_factory=set)
    ended: list[int] = field(default_factory=list)
    steps: int = 0
    spares_s: list[float] = field(default_factory=list)

    def describe(self) -> Ready:
        return Ready(100, 10, 10, 8, 64)

    @property
    def has_work(self) -> bool:
        return bool(self.keys or self.ended)

    @property
    def can_step(self) -> bool:
        return not self.is_preparing or bool(self.ended)

    @property
    def spare_s(self) -> float:
        return self.spares_s.pop(0) if self.spares_s else 0.0

    def add(self, key: int, request: GenerationRequest, arrival_ns: int) -> None:
        if request.max_new_tokens < 1:
            raise InflightError(ErrorKind.INVALID_REQUEST, "too little")
        self.told.append((key, arrival_ns))
        self.keys.add(key)

    def cancel(self, key: int) -> None:
        self.keys.discard(key)
        self.ended.append(key)

    def configure(
        self,
        max_step_tokens: int | None,
        max_batch_size: int | None,
        inter_token_ms: Mapping[Tier, float | None] | None,
    ) -> None:
        if max_batch_size == 0:
            raise InflightError(ErrorKind.INVALID_REQUEST, "max_batch_size is 0; it must be at least 1")
        self.told.append((max_step_tokens, max_batch_size, inter_token_ms))

    def drop_adapter(self, name: str) -> None:
        """There are none."""

    def step(self) -> list[SequenceEvent]:
        self.steps += 1
        if self.failure_at_next_step is not None:
            failure, self.failure_at_next_step = self.failure_at_next_step, None
            raise failure
        ended, self.ended = self.ended, []
        return [SequenceEvent(key, [], FinishReason.CANCELLED) for key in ended]

    def abort(self, reason: str) -> list[SequenceEvent]:
        keys, self.keys = self.keys, set()
        return [SequenceEvent(key, [], FinishReason.ERROR, reason) for key in keys]

    @property
    def gauges_at_start(self) -> Gauges:
        return Gauges(0, 0, 0, 0, 0, 0, 0, 10, 0)

    def gauges(self) -> Gauges:
        return Gauges(self.steps, len(self.keys), 0, 0, 0, 0, 0, 10, 0)


class NoCollector:
    """In a test the garbage collector is not the engine's own."""

    def collect(self) -> None: ...

    def freeze(self) -> None: ...

    def enable(self) -> None: ...

    def set_threshold(self, *thresholds: int) -> None: ...


@dataclass
class RunningLoop:
    runtime: NotingRuntime
    connection: Connection

    def tell(self, command: Command) -> None:
        send(self.connection, command)

    def next_event(self) -> SequenceEvent:
        return self.events(1)[0]

    def events(self, count: int) -> list[SequenceEvent]:
        events: list[SequenceEvent] = []
        while len(events) < count:
            assert self.connection.poll(patience(30)), "the loop says nothing"
            report = receive_report(self.connection)
            assert isinstance(report, Progress)
            events += report.events
        return events


@contextmanager
def running_loop(is_preparing: bool = False) -> Iterator[RunningLoop]:
    ours, theirs = Pipe()
    runtime = NotingRuntime(is_preparing)

    def run() -> None:
        with pytest.raises((EOFError, OSError)):
            StepLoop(theirs, runtime, gauge_period_s=60).run()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield RunningLoop(runtime, ours)
    finally:
        ours.close()
        thread.join(patience(30))
        theirs.close()
        assert not thread.is_alive()


def submission(key: int, max_new_tokens: int = 5, sequences: int = 1) -> Submit:
    return Submit.of(key, GenerationRequest([1], max_new_tokens, num_return_sequences=sequences), 1234)


def test_a_request_comes_with_the_time_it_arrived() -> None:
    with running_loop() as loop:
        loop.tell(submission(1))
        wait_until(lambda: loop.runtime.told == [(1, 1234)])


@pytest.mark.parametrize(("asked", "told"), [(1, 1), (3, 3), (0, 1), (10**9, 1024)])
def test_a_refusal_ends_each_requested_sequence(asked: int, told: int) -> None:
    with running_loop() as loop:
        loop.tell(submission(7, max_new_tokens=0, sequences=asked))
        events = loop.events(told)
    assert [event.sequence_index for event in events] == list(range(told))
    assert {(event.key, event.error) for event in events} == {(7, "invalid_request: too little")}


def test_the_engines_gauges_are_reported_before_the_first_request() -> None:
    with running_loop() as loop:
        assert loop.connection.poll(patience(30))
        assert receive_report(loop.connection) == Progress([], loop.runtime.gauges_at_start)


def test_new_limits_and_objectives_reach_the_runtime() -> None:
    targets = {Tier.INTERACTIVE: 20.5, Tier.STANDARD: None}
    with running_loop() as loop:
        loop.tell(Configure(max_step_tokens=64))
        loop.tell(Configure(inter_token_ms=targets))
        wait_until(lambda: loop.runtime.told == [(64, None, None), (None, None, targets)])


def test_invalid_limits_are_logged_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), running_loop() as loop:
        loop.tell(Configure(max_batch_size=0))
        loop.tell(submission(1, max_new_tokens=0))
        loop.next_event()
    assert "max_batch_size is 0; it must be at least 1" in caplog.text


def test_a_broken_step_ends_what_runs_and_the_loop_goes_on() -> None:
    with running_loop() as loop:
        loop.runtime.failure_at_next_step = RuntimeError("a defect")
        loop.tell(submission(1))
        assert loop.next_event().error == "engine_failed: a step of the engine failed: a defect"
        loop.tell(submission(2))
        loop.tell(Cancel(2))
        assert loop.next_event().key == 2


def test_an_engine_that_broke_for_good_ends_every_request_and_then_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = NotingRuntime(failure_at_next_step=EngineBroken("the device is lost"))
    declared = SimpleNamespace(load=lambda parameters, progress: runtime)
    monkeypatch.setattr(process, "chosen_runtime", lambda start, connection: declared)
    monkeypatch.setattr("sys.argv", ["main", "3"])  # not those of the tests
    monkeypatch.setattr(process, "gc", NoCollector())
    ours, theirs = Pipe()
    with ours:
        send(ours, Start(EngineParameters("inflight_fused_batching", "")))
        send(ours, submission(1))
        send(ours, submission(2, max_new_tokens=0))
        assert process.main(theirs) == 1
        assert isinstance(receive_report(ours), Ready)
        assert receive_report(ours) == Progress([], runtime.gauges_at_start)
        report = receive_report(ours)
        assert isinstance(report, Progress)
        assert {event.key: event.error for event in report.events} == {
            1: "engine_failed: a step of the engine failed: the device is lost",
            2: "invalid_request: too little",
        }
        with pytest.raises(EOFError):
            receive_report(ours)


def test_the_loop_does_not_spin_while_all_work_is_being_prepared() -> None:
    with running_loop(is_preparing=True) as loop:
        loop.tell(submission(1))
        wait_until(lambda: loop.runtime.steps > 0)
        before, began_s = loop.runtime.steps, time.monotonic()
        time.sleep(0.1)
        steps = loop.runtime.steps - before
        assert steps <= 600 * (time.monotonic() - began_s)
        loop.tell(Cancel(1))
        assert loop.next_event().finish_reason is FinishReason.CANCELLED


def test_an_engine_process_serves_several_sequences_and_takes_new_limits() -> None:
    parameters = EngineParameters(
        "inflight_fused_batching",
        "",
        inflight_runtime="synthetic",
        inflight_synthetic_tokens_per_s=10_000,
        stats_check_period_ms=1,
    )
    engine = EngineProcess(parameters)
    try:
        engine.wait_until_ready()
        engine.configure(max_batch_size=3)
        request = GenerationRequest([40], 3, sampling=SamplingParams(seed=1), num_return_sequences=2)
        engine.submit(5, request, arrival_ns=10)
        answers: dict[int, list[int]] = {0: [], 1: []}
        perfs: list[PerfMetrics] = []
        gauges: Gauges | None = None
        while len(perfs) < 2 or gauges is None:
            assert engine.has_report(patience(30))
            report = engine.receive()
            assert isinstance(report, Progress)
            gauges = report.gauges or gauges
            for event in report.events:
                answers[event.sequence_index] += event.token_ids
                perfs += [event.perf] if event.perf else []
        assert answers == {0: [40, 41, 42], 1: [40, 41, 42]}
        assert [perf.arrival_ns for perf in perfs] == [10, 10]
        assert gauges.max_batch_size == 3
        assert 10_000_000 < gauges.memory_bytes < 100_000_000_000
    finally:
        engine.stop()


def test_what_loads_for_long_tells_where_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    told = ""

    def is_told() -> bool:
        nonlocal told
        told += capfd.readouterr().err
        return "in test_what_loads_for_long_tells_where_it_is" in told

    with telling_where_it_is(0.05):
        wait_until(is_told)
    capfd.readouterr()
    time.sleep(0.1)
    assert not capfd.readouterr().err
