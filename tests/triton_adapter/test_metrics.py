from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.engine.report import SIZES, FinishReason, Gauges, PerfMetrics, Ready, SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.triton_adapter.coalescer import Coalescer, Pending
from python_backend.triton_adapter.metrics import EngineMetrics
from python_backend.triton_adapter.requests import GenerateCall, RowCall
from python_backend.triton_adapter.responses import ResponseBuilder
from python_backend.triton_adapter.running_requests import RunningRequest, RunningRow
from python_backend.wire.stream_mark import StreamMark
from python_backend.wire.tiers import Tier
from tests.fakes.triton_stub import MetricFamily, Sender, metric

CAPACITY = Ready(4096, 100, 16, 8, 512)
GAUGES = Gauges(7, 5, 4, 1, 1, 2, 40, 100, 33, 12, 9, 3, 6, 256, 1_000_000, 50, 2_000_000, 3_000)


@pytest.fixture
def metrics() -> EngineMetrics:
    MetricFamily.alive.clear()
    return EngineMetrics("tensorrt_llm", "1", static_batching=False)


def running_row() -> RunningRow:
    generation = GenerationRequest([1, 2, 3], 4, tier=Tier.BATCH)
    call = GenerateCall("r", (RowCall(generation, True, False, False, False, False),), False)
    builder = ResponseBuilder(call, 0, 0, StreamMark(0, 1), ())
    return RunningRow(1, RunningRequest("r", Sender(), 1), call, 0, 0, [builder])


def values(family: str, label: str) -> dict[str, float]:
    found = next(each for each in MetricFamily.alive if each.name == family)
    return {each.labels[label]: each.value for each in found.metrics}


def test_the_contracts_gauges_show_the_engine(metrics: EngineMetrics) -> None:
    metrics.update(CAPACITY, GAUGES)
    assert values("nv_trt_llm_request_metrics", "request_type") == {
        "active": 5,
        "max": 6,
        "scheduled": 4,
        "context": 1,
        "waiting": 1,
    }
    assert values("nv_trt_llm_runtime_memory_metrics", "memory_type") == {
        "cpu": 1_000_000,
        "gpu": 2_000_000,
        "pinned": 3_000,
    }
    assert values("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type") == {
        "max": 100,
        "free": 60,
        "used": 40,
        "tokens_per": 16,
        "reused": 12,
        "fraction": 0.4,
    }
    assert values("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric") == {
        "total_context_tokens": 33,
        "generation_requests": 3,
        "micro_batch_id": 0,
        "paused_requests": 2,
    }
    general = values("nv_trt_llm_general_metrics", "general_type")
    assert general["iteration_counter"] == 7
    assert abs(general["timestamp"] / 1e6 - time.time()) < 60, "microseconds"
    assert metric("inflight_engine_batch_limit_sequences").value == 6
    assert metric("inflight_engine_step_limit_tokens").value == 256


def test_every_metric_names_model_and_version(metrics: EngineMetrics) -> None:
    assert all(
        {"model": "tensorrt_llm", "version": "1"}.items() <= each.labels.items()
        for family in MetricFamily.alive
        for each in family.metrics
    )


def test_static_batching_has_its_own_family_in_place_of_the_in_flight_one() -> None:
    MetricFamily.alive.clear()
    metrics = EngineMetrics("tensorrt_llm", "1", static_batching=True)
    metrics.update(CAPACITY, GAUGES)
    assert values("nv_trt_llm_v1_metrics", "v1_specific_metric") == {
        "total_context_tokens": 33,
        "total_generation_tokens": 3,
        "empty_generation_slots": 4,
    }
    assert "nv_trt_llm_inflight_batcher_metrics" not in {family.name for family in MetricFamily.alive}


def test_an_unchanged_gauge_is_not_set_again(metrics: EngineMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics.update(CAPACITY, GAUGES)
    calls: list[float] = []
    monkeypatch.setattr("tests.fakes.triton_stub.Metric.set", lambda self, value: calls.append(value))
    metrics.update(CAPACITY, GAUGES)
    assert len(calls) <= 1, "the timestamp alone"


def test_counters_continue_when_the_engine_restarts(metrics: EngineMetrics) -> None:
    def changed(**values: Any) -> Gauges:
        names = Gauges.__struct_fields__
        return Gauges(**{**{name: getattr(GAUGES, name) for name in names}, **values})

    for reused in (12, 20, 0, 5):
        metrics.update(CAPACITY, changed(reused_blocks=reused))
    assert metric("inflight_engine_reused_blocks_total").value == 25
    assert metric("inflight_engine_preemptions_total").value == 3


def test_steps_are_counted_by_their_sizes(metrics: EngineMetrics) -> None:
    for steps in (2, 5):
        sized = (steps, *[0] * (len(SIZES) - 1))
        took_ns = tuple(20_000_000 * each for each in sized)
        metrics.update(CAPACITY, msgspec.structs.replace(GAUGES, sized_steps=sized, sized_ns=took_ns))
    assert metric("inflight_engine_steps_total", tokens="1").value == 5
    assert metric("inflight_engine_step_seconds_total", tokens="1").value == pytest.approx(0.1)


def test_the_learned_cost_is_shown_once_there_is_one(metrics: EngineMetrics) -> None:
    cost = StepCost(12.3456, 0.0123456, 0.25, 0.0)
    metrics.update(CAPACITY, GAUGES)
    assert metric("inflight_engine_step_cost_seconds", coefficient="base").value == 0
    learned = LearnedStepCost(cost, samples=400, error=0.0312, is_frozen=True)
    metrics.update(CAPACITY, msgspec.structs.replace(GAUGES, learned=learned, busy_ns=2_500_000_000))
    assert values("inflight_engine_step_cost_seconds", "coefficient") == {
        "base": 0.0123,
        "prefill_token": 0.0000123,
        "decode_sequence": 0.00025,
        "kv_kilotoken": 0,
    }
    assert metric("inflight_engine_step_cost_error_ratio").value == 0.031
    assert metric("inflight_engine_step_cost_frozen").value == 1
    assert metric("inflight_engine_busy_seconds_total").value == 2.5


def test_a_finished_row_is_counted_once_by_its_lengths_and_its_wait(metrics: EngineMetrics) -> None:
    row = running_row()
    row.builders[0].output_tokens = 40
    metrics.first_token(Tier.BATCH, waited_ns=250_000_000)
    metrics.row_ended(row, PerfMetrics(1_000_000_000, 1_500_000_000, 0, 0, 0, 0, 0))
    assert metric("nv_llm_input_token_len", response_metric_type="total_input_tokens").observations == [3]
    output = metric("nv_llm_output_token_len", response_metric_type="total_output_tokens")
    assert (output.observations, output.buckets) == ([40], [10, 50, 100, 500, 1000])
    assert metric("inflight_engine_time_to_first_token_seconds", tier="batch").observations == [0.25]
    assert metric("inflight_engine_queue_seconds", tier="batch").observations == [0.5]


def test_a_row_that_never_started_has_no_wait(metrics: EngineMetrics) -> None:
    metrics.row_ended(running_row(), PerfMetrics(1_000_000_000, 0, 0, 0, 0, 0, 0))
    metrics.row_ended(running_row(), None)
    assert metric("inflight_engine_queue_seconds", tier="batch").observations == []


def test_gaps_between_tokens_are_the_mean_over_a_response() -> None:
    row, second_ns = running_row(), 1_000_000_000

    def response(*at_s: float) -> Pending:
        coalescer = Coalescer()
        for moment_s in at_s:
            coalescer.put(SequenceEvent(1, [7]), int(moment_s * second_ns))
        pending = coalescer.take()
        assert pending is not None
        return pending

    assert row.mean_gap_s(response(10)) is None, "the first token has none before it"
    assert row.mean_gap_s(response(12)) == 2
    assert row.mean_gap_s(response(13, 14)) == 1
    assert row.mean_gap_s(Pending(1, finish_reason=FinishReason.END_ID)) is None
    assert running_row().mean_gap_s(response(10, 11, 14)) == 2
