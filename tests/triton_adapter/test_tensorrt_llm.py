"""The engine's model on a stand-in stub, with a real engine process: every request ends exactly once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from python_backend.engine.process.handle import EngineProcess
from python_backend.engine.report import LoadingProgress
from python_backend.triton_adapter import router_watch, tensorrt_llm
from python_backend.triton_adapter.tensorrt_llm import TritonPythonModel
from python_backend.wire.engine_report import REPORT, ROUTER
from python_backend.wire.errors import ErrorKind, InflightError
from tests.fakes.triton_stub import Request, Sender, arguments
from tests.pace import is_over, patience

FIRST_ID = 500


@pytest.fixture
def model() -> Iterator[TritonPythonModel]:
    parameters = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": "-",
        "inflight_runtime": "synthetic",
        "inflight_synthetic_tokens_per_s": "2000",
        "cancellation_check_period_ms": "5",
    }
    model = TritonPythonModel()
    model.initialize(arguments("tensorrt_llm", parameters))
    yield model
    model.finalize()


def request(count: int, request_id: str = "", sender: Sender | None = None, **more: Any) -> Request:
    arrays = {
        "input_ids": np.asarray([[FIRST_ID]], dtype=np.int32),
        "input_lengths": np.asarray([1], dtype=np.int32),
        "request_output_len": np.asarray([count], dtype=np.int32),
        "streaming": np.asarray([True]),
        **{name: np.asarray(value) for name, value in more.items()},
    }
    return Request(arrays, request_id, sender=sender or Sender())


def expected(count: int) -> list[int]:
    return [FIRST_ID + position % 50 for position in range(count)]


def wait_for(*requests: Request) -> None:
    for each in requests:
        assert each.sender.ended.wait(patience(30)), "a request never ended"


def run(model: TritonPythonModel, *requests: Request) -> None:
    model.execute(requests)
    wait_for(*requests)


def answer_in_time(model: TritonPythonModel, limit_s: float = 20) -> Request:
    """Asks until the engine answers again."""
    began_s = time.monotonic()
    while True:
        again = request(3)
        run(model, again)
        if again.sender.error is None or is_over(began_s, limit_s):
            return again
        time.sleep(0.1)


def test_nothing_is_told_to_triton_before_it_has_sent_a_request(
    model: TritonPythonModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    monkeypatch.setattr(model._metrics, "update", lambda *_: told.set())
    assert not told.wait(0.2)
    run(model, request(3))
    assert told.wait(patience(30))


def test_a_stream_gives_every_token_once_and_in_order(model: TritonPythonModel) -> None:
    requests = [request(120) for _ in range(8)]
    run(model, *requests)
    assert [each.sender.ids for each in requests] == [expected(120)] * 8
    assert {each.sender.finals for each in requests} == {1}


def test_an_answer_that_does_not_stream_is_one_response(model: TritonPythonModel) -> None:
    whole = request(20, streaming=[False], exclude_input_in_output=[True])
    run(model, whole)
    assert len(whole.sender.responses) == 1
    assert whole.sender.ids == expected(20)
    assert whole.sender.responses[0].outputs["finish_reason"].item() == b"length"


def test_a_mark_is_sent_only_to_postprocessing(model: TritonPythonModel) -> None:
    marked = request(3, decoder_input_ids=[[0]])
    run(model, marked)
    assert all(r.outputs["output_ids"].reshape(-1)[-1] < 0 for r in marked.sender.responses)
    assert [token_id for token_id in marked.sender.ids if token_id >= 0] == expected(3)


def test_stop_ends_the_request_of_that_id_and_no_other(model: TritonPythonModel) -> None:
    stopped, other = request(100_000, "a"), request(200, "b")
    model.execute([stopped, other])
    stop = request(1, "a", stop=[True])
    model.execute([stop])
    wait_for(stop, stopped, other)
    assert stop.sender.responses == []
    assert stopped.sender.responses[-1].outputs["finish_reason"].item() == b"cancelled"
    assert other.sender.ids == expected(200)


def test_a_caller_that_left_is_noticed(model: TritonPythonModel) -> None:
    left = request(100_000)
    model.execute([left])
    left.sender.is_caller_gone = True
    wait_for(left)


def test_a_caller_that_left_is_noticed_while_an_unstreamed_answer_grows(
    model: TritonPythonModel,
) -> None:
    left = request(100_000, streaming=[False])
    model.execute([left])
    left.sender.is_caller_gone = True
    wait_for(left)


def test_a_full_queue_refuses_with_the_contracts_sentence() -> None:
    parameters = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": "-",
        "inflight_runtime": "synthetic",
        "inflight_max_batch_size": "2",
    }
    model = TritonPythonModel()
    model.initialize(arguments("tensorrt_llm", parameters, max_queue_size=1))
    try:
        taken = [request(100_000, name) for name in ("one", "two", "three")]
        refused = request(5)
        model.execute([*taken, refused])
        wait_for(refused)
        assert refused.sender.error is not None
        assert "overloaded: Maximum queue size of 1 has been reached" in refused.sender.error
        model.execute([request(1, name, stop=[True]) for name in ("one", "two", "three")])
        wait_for(*taken)
        run(model, request(5))
    finally:
        model.finalize()


def test_a_model_that_answers_once_acknowledges_a_stop_with_a_response() -> None:
    parameters = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": "-",
        "inflight_runtime": "synthetic",
    }
    model = TritonPythonModel()
    model.initialize(arguments("tensorrt_llm", parameters, decoupled=False))
    try:
        stop = request(1, "one", Sender(needs_response=True), stop=[True], streaming=[False])
        run(model, stop)
        assert stop.sender.error is None
    finally:
        model.finalize()


def test_callers_of_an_ensemble_are_not_checked_for_having_left(model: TritonPythonModel) -> None:
    left_alone = request(100_000, "one", decoder_input_ids=np.zeros((1, 1), np.int32))
    asked_about = request(100_000)
    model.execute([left_alone, asked_about])
    while not asked_about.sender.questions:
        time.sleep(0.01)
    assert left_alone.sender.questions == 0
    model.execute([request(1, "one", stop=[True])])
    asked_about.sender.is_caller_gone = True
    wait_for(left_alone, asked_about)


def test_what_a_router_began_ends_with_it(model: TritonPythonModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_watch, "_SILENCE_S", 0.3)
    dead, alone = (request(100_000) for _ in range(2))
    dead.request_parameters = {ROUTER: "dead"}
    asked = request(1, stop=[True])
    asked.request_parameters = {REPORT: True, ROUTER: "dead"}
    model.execute([dead, alone, asked])
    wait_for(dead)
    assert dead.sender.responses[-1].outputs["finish_reason"].item() == b"cancelled"
    assert not alone.sender.ended.is_set()


@pytest.mark.parametrize("fail_at", [1, 2])
def test_a_response_that_cannot_be_sent_ends_its_request_with_an_error(
    model: TritonPythonModel, fail_at: int
) -> None:
    unlucky, other = request(2000, sender=Sender(fail_at=fail_at)), request(50)
    run(model, unlucky, other)
    assert unlucky.sender.error is not None
    assert "no shared memory left" in unlucky.sender.error
    assert other.sender.ids == expected(50)


def test_a_last_response_that_cannot_be_sent_is_followed_by_an_error(model: TritonPythonModel) -> None:
    unlucky = request(5, sender=Sender(fail_at=1), streaming=[False])
    run(model, unlucky)
    assert unlucky.sender.error is not None


def test_a_refused_request_ends_with_its_reason(model: TritonPythonModel) -> None:
    refused = request(5, beam_width=[4])
    run(model, refused)
    assert refused.sender.error == "unsupported: beam_width is not supported by this engine"


def test_a_killed_engine_fails_its_requests_once_and_comes_back(model: TritonPythonModel) -> None:
    lost = [request(100_000) for _ in range(4)]
    model.execute(lost)
    os.kill(model._engine.pid, signal.SIGKILL)
    run(
        model, *[request(1) for _ in range(20)]
    )  # some arrive while it is dead: each ends, one way or the other
    for each in lost:
        assert each.sender.ended.wait(patience(30))
        assert each.sender.error is not None
        assert "killed by SIGKILL" in each.sender.error
    assert answer_in_time(model).sender.ids == expected(3)


def test_an_engine_that_cannot_be_restarted_at_first_is_retried(
    model: TritonPythonModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt_llm, "_RESTART_PAUSE_S", 0.05)
    failures = iter([OSError("no memory"), InflightError(ErrorKind.ENGINE_FAILED, "not yet")])
    started = EngineProcess.wait_until_ready

    def stumble(engine: EngineProcess, progress: LoadingProgress) -> Any:
        for failure in failures:
            engine.stop()
            raise failure
        return started(engine, progress)

    monkeypatch.setattr(EngineProcess, "wait_until_ready", stumble)
    os.kill(model._engine.pid, signal.SIGKILL)
    assert answer_in_time(model).sender.ids == expected(3)
