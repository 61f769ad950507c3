"""Requests of several rows and sequences on a scripted engine: each ends once, the request with its last."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.engine.report import FinishReason, Gauges, PerfMetrics, SequenceEvent
from python_backend.triton_adapter import tensorrt_llm
from python_backend.triton_adapter.tensorrt_llm import TritonPythonModel
from python_backend.wire.engine_report import EngineReport, read_report
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.stream_mark import StreamMark
from python_backend.wire.tensors import TENSORRT_LLM
from python_backend.wire.tiers import Tier
from tests.fakes.engine_process import ScriptedEngine
from tests.fakes.triton_stub import InferenceResponse, Request, Sender, arguments, metric
from tests.pace import patience
from tests.tiers import examples
from tests.waiting import wait_until

EVERYTHING = tuple(tensor.name for tensor in TENSORRT_LLM.outputs)
PERF = PerfMetrics(1000, 2000, 3000, 4000, 5, 6, 0)
REFUSED = InflightError(ErrorKind.INVALID_REQUEST, "no").to_text()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[TritonPythonModel]:
    monkeypatch.setattr(tensorrt_llm, "EngineProcess", ScriptedEngine)
    parameters = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": "-",
        "cancellation_check_period_ms": "5",
    }
    model = TritonPythonModel()
    model.initialize(arguments("tensorrt_llm", parameters))
    yield model
    model.finalize()


def test_the_progress_of_the_engines_start_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tensorrt_llm, "EngineProcess", ScriptedEngine)
    parameters = {"gpt_model_type": "inflight_fused_batching", "gpt_model_path": "-"}
    model = TritonPythonModel()
    with caplog.at_level("INFO"):
        model.initialize(arguments("tensorrt_llm", parameters))
    model.finalize()
    assert "loading: loading weights: 1 of 2" in caplog.messages


def engine_of(model: TritonPythonModel) -> ScriptedEngine:
    engine: Any = model._engine
    assert isinstance(engine, ScriptedEngine)
    return engine


def request(rows: int = 1, streaming: bool = True, request_id: str = "r", **more: Any) -> Request:
    arrays = {
        "input_ids": np.asarray([[5, 6]] * rows, dtype=np.int32),
        "input_lengths": np.asarray([2] * rows, dtype=np.int32),
        "request_output_len": np.asarray([9] * rows, dtype=np.int32),
        "streaming": np.asarray([streaming] * rows),
        **{name: np.asarray(value) for name, value in more.items()},
    }
    return Request(arrays, request_id, outputs=EVERYTHING, sender=Sender())


def start(model: TritonPythonModel, asked: Request) -> list[int]:
    """The keys under which the rows are in the engine."""
    known = set(engine_of(model).submitted)
    model.execute([asked])
    return [key for key in engine_of(model).submitted if key not in known]


def say_and_wait(model: TritonPythonModel, asked: Request, *events: SequenceEvent) -> None:
    """Each event becomes a response of its own."""
    for event in events:
        before = len(asked.sender.responses)
        engine_of(model).say(event)
        wait_until(lambda before=before: len(asked.sender.responses) > before)  # type: ignore[misc]  # default


def value(response: InferenceResponse, name: str) -> Any:
    array = response.outputs[name]
    assert array.shape[0] == 1
    return array.reshape(-1).tolist()[0]


def mark_of(response: InferenceResponse) -> StreamMark:
    mark = StreamMark.from_padding_id(int(response.outputs["output_ids"].reshape(-1)[-1]))
    assert mark is not None
    return mark


def names(response: InferenceResponse) -> set[str]:
    return set(response.outputs)


def test_each_row_is_answered_under_its_batch_index_and_the_last_one_ends_the_request(
    model: TritonPythonModel,
) -> None:
    asked = request(rows=3)
    first, second, third = start(model, asked)
    say_and_wait(
        model,
        asked,
        SequenceEvent(second, [20]),
        SequenceEvent(first, [10], FinishReason.LENGTH),
        SequenceEvent(third, [30], FinishReason.LENGTH),
    )
    assert not asked.sender.ended.is_set()
    say_and_wait(model, asked, SequenceEvent(second, [21], FinishReason.LENGTH))
    assert asked.sender.finals == 1
    assert [value(each, "batch_index") for each in asked.sender.responses] == [1, 0, 2, 1]
    assert asked.sender.ids == [20, 10, 30, 21]
    assert not model._running


def test_sequences_of_one_prompt_interleave_under_their_index(model: TritonPythonModel) -> None:
    asked = request(num_return_sequences=[2])
    (key,) = start(model, asked)
    say_and_wait(
        model,
        asked,
        SequenceEvent(key, [10], sequence_index=0),
        SequenceEvent(key, [20], sequence_index=1),
        SequenceEvent(key, [11], FinishReason.LENGTH, sequence_index=0),
    )
    assert not asked.sender.ended.is_set()
    say_and_wait(model, asked, SequenceEvent(key, [], FinishReason.END_ID, sequence_index=1))
    assert asked.sender.finals == 1
    assert [value(each, "sequence_index") for each in asked.sender.responses] == [0, 1, 0, 1]
    assert "batch_index" not in names(asked.sender.responses[0])


def test_a_lone_row_and_sequence_carries_no_index(model: TritonPythonModel) -> None:
    asked = request(num_return_sequences=[1])
    (key,) = start(model, asked)
    say_and_wait(model, asked, SequenceEvent(key, [1], FinishReason.LENGTH, perf=PERF, log_probs=[-1.0]))
    assert names(asked.sender.responses[0]) == {"output_ids", "sequence_length", "finish_reason"}


def test_every_sequence_of_every_row_has_its_own_mark(model: TritonPythonModel) -> None:
    requests = [
        request(2, num_return_sequences=[2, 2], decoder_input_ids=[[0], [0]], request_id=f"r{number}")
        for number in range(2)
    ]
    marks: list[StreamMark] = []
    for asked in requests:
        for key, index in itertools.product(start(model, asked), range(2)):
            say_and_wait(model, asked, SequenceEvent(key, [1], FinishReason.LENGTH, sequence_index=index))
        marks += map(mark_of, asked.sender.responses)
    assert len({mark.stream for mark in marks}) == 8
    assert all(mark.is_last for mark in marks)


def test_log_probs_and_logits_have_the_contracts_shapes(model: TritonPythonModel) -> None:
    vocabulary = 3
    asked = request(return_log_probs=[True], return_context_logits=[True], return_generation_logits=[True])
    (key,) = start(model, asked)
    logits = np.arange(2 * vocabulary, dtype=np.float32)
    say_and_wait(
        model,
        asked,
        SequenceEvent(
            key,
            [7, 8],
            log_probs=[-0.5, -0.25],
            context_logits=logits.tobytes(),
            generation_logits=logits.tobytes(),
        ),
        SequenceEvent(key, [9], log_probs=[-1.0], generation_logits=logits[:vocabulary].tobytes()),
        SequenceEvent(key, [], FinishReason.END_ID, log_probs=[]),
    )
    first, second, last = asked.sender.responses
    assert first.outputs["output_log_probs"].tolist() == [[[-0.5, -0.25]]]
    assert first.outputs["context_logits"].tolist() == [logits.reshape(2, 3).tolist()]
    assert first.outputs["generation_logits"].tolist() == [[logits.reshape(2, 3).tolist()]]
    assert second.outputs["generation_logits"].shape == (1, 1, 1, vocabulary)
    assert "context_logits" not in names(second)
    assert [each.outputs["cum_log_probs"].tolist() for each in asked.sender.responses] == [
        [[-0.75]],
        [[-1.75]],
        [[-1.75]],
    ]
    assert last.outputs["output_log_probs"].shape == (1, 1, 0)
    assert "generation_logits" not in names(last)


def test_top_log_probs_have_the_token_first_and_none_come_without_tokens(model: TritonPythonModel) -> None:
    asked = request()
    asked.request_parameters = {"inflight_top_log_probs": 1}
    (key,) = start(model, asked)
    say_and_wait(
        model,
        asked,
        SequenceEvent(key, [7], top_log_probs=[[(7, -0.5), (9, -0.25)]]),
        SequenceEvent(key, [], FinishReason.END_ID),
    )
    first, last = asked.sender.responses
    assert first.outputs["top_token_ids"].tolist() == [[[[7, 9]]]]
    assert first.outputs["top_log_probs"].tolist() == [[[[-0.5, -0.25]]]]
    assert not names(last) & {"top_token_ids", "top_log_probs"}


@pytest.mark.parametrize("wants_log_probs", [False, True])
def test_a_stream_begins_with_its_prompt_on_request(model: TritonPythonModel, wants_log_probs: bool) -> None:
    asked = request(return_num_output_tokens=[True], return_perf_metrics=[True])
    asked.request_parameters = {"inflight_echo": True}
    top = None
    if wants_log_probs:
        asked.request_parameters = {"inflight_echo": True, "inflight_top_log_probs": 0}
        top = [[(6, -2.0)], [(7, -0.5)]]
    (key,) = start(model, asked)
    cached = PerfMetrics(1, 2, 3, 4, 5, 6, 7, 8)
    say_and_wait(model, asked, SequenceEvent(key, [7], perf=cached, top_log_probs=top))
    say_and_wait(model, asked, SequenceEvent(key, [], FinishReason.END_ID, perf=PERF))
    prompt, first, last = asked.sender.responses
    assert [each.outputs["output_ids"].reshape(-1).tolist() for each in (prompt, first, last)] == [
        [5, 6],
        [7],
        [],
    ]
    assert [value(each, "cached_tokens") for each in (prompt, first, last)] == [8, 8, 0]
    assert [value(each, "num_output_tokens") for each in (prompt, first, last)] == [2, 1, 0]
    assert "arrival_time_ns" in names(last) - names(prompt) - names(first)
    if wants_log_probs:
        of_prompt = prompt.outputs["top_log_probs"].reshape(-1)
        assert np.isnan(of_prompt[0])
        assert of_prompt[1:].tolist() == [-2.0]
        assert prompt.outputs["top_token_ids"].reshape(-1).tolist() == [5, 6]
        assert first.outputs["top_log_probs"].reshape(-1).tolist() == [-0.5]


def test_ids_come_beside_the_text_and_those_of_the_prompt_before_all_others(model: TritonPythonModel) -> None:
    asked = request(return_num_output_tokens=[True], return_perf_metrics=[True])
    asked.request_parameters = {"inflight_token_ids": True}
    (key,) = start(model, asked)
    say_and_wait(model, asked, SequenceEvent(key, [7, 8], perf=PerfMetrics(1, 2, 3, 4, 5, 6, 7, 8)))
    say_and_wait(model, asked, SequenceEvent(key, [], FinishReason.END_ID, perf=PERF))
    prompt, first, last = asked.sender.responses
    assert (prompt.outputs["token_ids"].tolist(), first.outputs["token_ids"].tolist()) == ([[5, 6]], [[7, 8]])
    assert "token_ids" not in names(last)
    assert prompt.outputs["output_ids"].size == 0, "it has no text"
    assert (value(prompt, "num_output_tokens"), value(prompt, "cached_tokens")) == (0, 8)


def test_an_answer_that_does_not_stream_collects_all_of_it(model: TritonPythonModel) -> None:
    asked = request(
        streaming=False, return_log_probs=[True], return_generation_logits=[True], return_perf_metrics=[True]
    )
    (key,) = start(model, asked)
    row = np.ones(4, dtype=np.float32).tobytes()
    engine_of(model).say(SequenceEvent(key, [7], log_probs=[-0.5], generation_logits=row))
    engine_of(model).say(
        SequenceEvent(key, [8], FinishReason.LENGTH, log_probs=[-0.5], generation_logits=row, perf=PERF)
    )
    wait_until(asked.sender.ended.is_set)
    (response,) = asked.sender.responses
    assert response.outputs["output_ids"].tolist() == [[[5, 6, 7, 8]]], "the prompt is echoed"
    assert response.outputs["output_log_probs"].tolist() == [[[-0.5, -0.5]]]
    assert value(response, "cum_log_probs") == -1.0
    assert response.outputs["generation_logits"].shape == (1, 1, 2, 4)
    assert value(response, "kv_cache_reused_blocks") == 6


def test_perf_outputs_come_with_the_last_response(model: TritonPythonModel) -> None:
    asked = request(return_perf_metrics=[True])
    (key,) = start(model, asked)
    say_and_wait(
        model, asked, SequenceEvent(key, [1]), SequenceEvent(key, [2], FinishReason.LENGTH, perf=PERF)
    )
    first, last = asked.sender.responses
    expected = {
        "kv_cache_alloc_new_blocks": 5,
        "kv_cache_reused_blocks": 6,
        "kv_cache_alloc_total_blocks": 11,
        "arrival_time_ns": 1000,
        "first_scheduled_time_ns": 2000,
        "first_token_time_ns": 3000,
        "last_token_time_ns": 4000,
        "acceptance_rate": 0.0,
        "total_accepted_draft_tokens": 0,
        "total_draft_tokens": 0,
    }
    assert not expected.keys() & names(first)
    assert {name: value(last, name) for name in expected} == expected
    dtypes = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32}
    for name in expected:
        assert last.outputs[name].dtype == dtypes[TENSORRT_LLM.output(name).dtype]


def test_steps_come_with_the_last_response_of_a_request_that_asked(model: TritonPythonModel) -> None:
    asked = request()
    asked.request_parameters = {"inflight_trace": True}
    (key,) = start(model, asked)
    rows = [[1, 2, 512, 3, 514, 1], [2**60, 2**60 + 9, 4, 2, 2, 4]]
    say_and_wait(
        model, asked, SequenceEvent(key, [1]), SequenceEvent(key, [2], FinishReason.LENGTH, steps=rows)
    )
    first, last = asked.sender.responses
    assert "engine_steps" not in names(first)
    assert last.outputs["engine_steps"].tolist() == [rows]
    assert last.outputs["engine_steps"].dtype == np.int64


def test_outputs_are_sent_only_where_they_are_requested(model: TritonPythonModel) -> None:
    asked = request(
        2,
        return_log_probs=[True] * 2,
        return_context_logits=[True] * 2,
        return_perf_metrics=[True] * 2,
        return_num_input_tokens=[True] * 2,
        return_num_output_tokens=[True] * 2,
    )
    asked.outputs = ("output_ids", "sequence_length", "num_input_tokens")
    first, _ = start(model, asked)
    say_and_wait(
        model,
        asked,
        SequenceEvent(first, [1], FinishReason.LENGTH, log_probs=[-1.0], context_logits=bytes(8), perf=PERF),
    )
    assert names(asked.sender.responses[0]) == {"output_ids", "sequence_length", "num_input_tokens"}
    assert value(asked.sender.responses[0], "num_input_tokens") == 2


def test_the_arrival_time_is_the_moment_of_execute(model: TritonPythonModel) -> None:
    before_ns = time.monotonic_ns()
    start(model, request(2))
    assert all(before_ns <= arrival_ns <= time.monotonic_ns() for arrival_ns in engine_of(model).arrivals_ns)


def test_an_error_of_one_row_leaves_the_others_alone(model: TritonPythonModel) -> None:
    asked = request(rows=2)
    first, second = start(model, asked)
    say_and_wait(model, asked, SequenceEvent(first, [], error=REFUSED))
    assert not asked.sender.ended.is_set()
    say_and_wait(model, asked, SequenceEvent(second, [20], FinishReason.LENGTH))
    assert asked.sender.finals == 1
    assert asked.sender.error == REFUSED
    assert asked.sender.ids == [20]
    assert engine_of(model).cancelled == []


def test_an_error_of_one_sequence_leaves_its_siblings_alone(model: TritonPythonModel) -> None:
    asked = request(num_return_sequences=[2])
    (key,) = start(model, asked)
    say_and_wait(
        model,
        asked,
        SequenceEvent(key, [10], sequence_index=0),
        SequenceEvent(key, [], error=REFUSED, sequence_index=0),
        SequenceEvent(key, [20], FinishReason.LENGTH, sequence_index=1),
    )
    assert asked.sender.finals == 1
    assert asked.sender.ids == [10, 20]


def test_a_row_that_is_refused_ends_with_all_its_sequences(model: TritonPythonModel) -> None:
    asked = request(num_return_sequences=[3])
    (key,) = start(model, asked)
    say_and_wait(model, asked, SequenceEvent(key, [], error=REFUSED))
    assert asked.sender.finals == 1
    assert len(asked.sender.responses) == 1


def test_an_ensemble_ends_with_its_first_error_so_its_other_rows_are_cancelled(
    model: TritonPythonModel,
) -> None:
    asked = request(rows=2, decoder_input_ids=[[0], [0]])
    first, second = start(model, asked)
    engine_of(model).say(SequenceEvent(first, [10]))
    engine_of(model).say(SequenceEvent(first, [], error=REFUSED))
    wait_until(lambda: engine_of(model).cancelled == [second])
    assert not asked.sender.ended.is_set()
    say_and_wait(model, asked, SequenceEvent(second, [], FinishReason.CANCELLED))
    assert asked.sender.finals == 1


def test_postprocessing_learns_of_a_stream_that_breaks_off(model: TritonPythonModel) -> None:
    asked = request(decoder_input_ids=[[0]])
    (key,) = start(model, asked)
    say_and_wait(model, asked, SequenceEvent(key, [10]))
    engine_of(model).say(SequenceEvent(key, [], error=REFUSED))
    wait_until(asked.sender.ended.is_set)
    _, goodbye, error = asked.sender.responses
    assert goodbye.outputs["sequence_length"].item() == 0
    assert mark_of(goodbye)[2:] == (1, True)
    assert error.error is not None


def test_postprocessing_learns_of_every_row_before_the_first_error_of_a_request(
    model: TritonPythonModel,
) -> None:
    """Behind it the ensemble passes nothing on."""
    asked = request(rows=2, num_return_sequences=[2, 1], decoder_input_ids=[[0], [0]])
    first, second = start(model, asked)
    streams = [(first, 0), (first, 1), (second, 0)]
    say_and_wait(model, asked, *(SequenceEvent(key, [1], sequence_index=index) for key, index in streams))
    engine_of(model).die()
    wait_until(asked.sender.ended.is_set)
    kinds = ["error" if each.error else "text" for each in asked.sender.responses]
    assert kinds == ["text"] * 6 + ["error"] * 2
    marks = [*map(mark_of, asked.sender.responses[:6])]
    assert {mark.stream for mark in marks if mark.is_last} == {mark.stream for mark in marks}


def test_stop_cancels_every_row(model: TritonPythonModel) -> None:
    asked, stop = request(rows=2), request(request_id="r", stop=[True])
    keys = start(model, asked)
    model.execute([stop])
    assert engine_of(model).cancelled == keys
    assert stop.sender.finals == 1
    assert stop.sender.responses == []
    say_and_wait(model, asked, *(SequenceEvent(key, [], FinishReason.CANCELLED) for key in keys))
    assert asked.sender.finals == 1


def test_a_caller_that_left_cancels_every_row(model: TritonPythonModel) -> None:
    asked = request(rows=2)
    keys = start(model, asked)
    asked.sender.is_caller_gone = True
    wait_until(lambda: set(engine_of(model).cancelled) == set(keys))


def test_a_dead_engine_fails_every_row_once(model: TritonPythonModel) -> None:
    asked = request(rows=2, num_return_sequences=[2, 1])
    first, _ = start(model, asked)
    dead = engine_of(model)
    say_and_wait(model, asked, SequenceEvent(first, [10], FinishReason.LENGTH, sequence_index=1))
    dead.die()
    wait_until(asked.sender.ended.is_set)
    assert asked.sender.finals == 1
    assert [each.error is not None for each in asked.sender.responses] == [False, True, True]
    wait_until(lambda: engine_of(model) is not dead)


def test_a_row_whose_response_cannot_be_sent_ends_and_the_others_go_on(model: TritonPythonModel) -> None:
    asked = request(rows=2)
    asked.sender.fail_at = 1
    first, second = start(model, asked)
    engine_of(model).say(SequenceEvent(first, [10]))
    wait_until(lambda: asked.sender.error is not None)
    assert engine_of(model).cancelled == [first]
    say_and_wait(model, asked, SequenceEvent(second, [20], FinishReason.LENGTH))
    assert asked.sender.finals == 1
    assert asked.sender.ids == [20]


def test_limits_change_while_running_and_outlive_the_engine(model: TritonPythonModel) -> None:
    control = request()
    wanted = '{"max_step_tokens": 256, "max_batch_size": 4, "inter_token_ms": {"standard": 40}}'
    control.request_parameters = {"inflight_configure": wanted}
    engine = engine_of(model)
    model.execute([control])
    assert (control.sender.finals, control.sender.responses) == (1, [])
    assert engine.configured == [(256, 4)]
    assert engine.submitted == {}
    engine.die()
    wait_until(lambda: engine_of(model) is not engine)
    assert engine_of(model).configured == [(256, 4)]
    assert engine_of(model).inter_token_ms == {Tier.INTERACTIVE: None, Tier.STANDARD: 40, Tier.BATCH: None}
    assert metric("inflight_engine_batch_limit_sequences").value == 4
    assert report_of(model).inter_token_ms == {"standard": 40}
    assert (report_of(model).max_batch_size, report_of(model).most_step_tokens) == (4, 256)


def report_of(model: TritonPythonModel) -> EngineReport:
    asked = request()
    asked.request_parameters = {"inflight_report": True}
    model.execute([asked])
    assert asked.sender.finals == 1
    (answer,) = asked.sender.responses
    (text,) = (value(answer, name) for name in names(answer))
    return read_report(text.decode())


def test_a_report_has_the_engines_latest_gauges_at_once(model: TritonPythonModel) -> None:
    at_start = report_of(model)
    assert (at_start.max_batch_size, at_start.max_step_tokens, at_start.total_blocks) == (8, 512, 100)
    assert (at_start.holds_whole_answers, at_start.learned) == (True, None)
    learned = LearnedStepCost(StepCost(10, 0.1, 0.2, 0.3), 50, 0.04)
    gauges = Gauges(7, 5, 4, 1, 2, 0, 40, 100, 33, max_batch_size=6, busy_ns=9, learned=learned)
    engine_of(model).say(gauges=gauges)
    wait_until(lambda: report_of(model).learned == learned)
    told = report_of(model)
    assert (told.step_count, told.active, told.waiting, told.used_blocks, told.busy_ns) == (7, 5, 2, 40, 9)
    assert (told.max_batch_size, told.most_batch_size, told.tokens_per_block) == (6, 8, 16)
    assert engine_of(model).submitted == {}


def test_refused_limits_change_nothing(model: TritonPythonModel) -> None:
    control = request()
    control.request_parameters = {"inflight_configure": '{"max_batch_size": 9}'}
    model.execute([control])
    assert control.sender.error is not None
    assert "allowed: 1 to 8" in control.sender.error
    assert engine_of(model).configured == []


Ending = tuple[int, int, bool]  # row, sequence, whether with an error


@st.composite
def endings(draw: st.DrawFn) -> tuple[list[int], list[Ending]]:
    """How many sequences each row has, and how they end in which order."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    streams = [(row, index) for row, count in enumerate(counts) for index in range(count)]
    return counts, [(*stream, draw(st.booleans())) for stream in draw(st.permutations(streams))]


@settings(
    deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(script=endings(), streaming=st.booleans())
def test_each_request_ends_exactly_once_under_any_events(
    model: TritonPythonModel, script: tuple[list[int], list[Ending]], streaming: bool
) -> None:
    counts, ends = script
    asked = request(len(counts), streaming, num_return_sequences=counts)
    keys = start(model, asked)
    for row, index, _ in ends:
        engine_of(model).say(SequenceEvent(keys[row], [1], sequence_index=index))
    for row, index, fails in ends:
        reason, error = (None, REFUSED) if fails else (FinishReason.LENGTH, None)
        engine_of(model).say(SequenceEvent(keys[row], [], reason, error, index))
    assert asked.sender.ended.wait(patience(30))
    assert asked.sender.finals == 1
    assert sum(each.error is not None for each in asked.sender.responses) == sum(end[2] for end in ends)
    wait_until(lambda: not model._running)
