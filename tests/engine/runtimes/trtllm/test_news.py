"""What is read from a result while it grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from python_backend.engine.runtimes.hosted.iterations import Iterations
from python_backend.engine.runtimes.hosted.news import log_prob_row
from python_backend.engine.runtimes.trtllm.news import Reader, read_perf
from python_backend.engine.runtimes.trtllm.statistics import note


@dataclass
class Output:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | None = None
    generation_logits: None = None
    request_perf_metrics: Any = None


@dataclass
class Result:
    outputs: list[Output] = field(default_factory=lambda: [Output()])
    finished: bool = False
    context_logits: None = None


def test_each_token_is_read_once() -> None:
    reader, result = Reader(), Result()
    result.outputs[0].token_ids += [4, 5]
    assert reader.read(result).token_ids == [4, 5]
    assert reader.read(result).token_ids == []
    result.outputs[0].token_ids.append(6)
    result.outputs[0].finish_reason, result.finished = "stop", True
    last = reader.read(result)
    assert (last.token_ids, last.is_last, last.finish_reason, last.perf) == ([6], True, "stop", None)


def test_a_row_of_log_probs_has_its_own_token_first_and_then_the_likeliest() -> None:
    given = {7: SimpleNamespace(logprob=-2.0), 3: SimpleNamespace(logprob=-0.5)}
    assert log_prob_row(7, given) == [(7, -2.0), (3, -0.5), (7, -2.0)]
    assert log_prob_row(7, -1.5) == [(7, -1.5)]


def test_timing_metrics_of_another_form_are_ignored() -> None:
    assert read_perf(SimpleNamespace(timing="other")) is None
    times = {
        name: timedelta(seconds=2) for name in ("first_scheduled_time", "first_token_time", "last_token_time")
    }
    blocks = SimpleNamespace(num_new_allocated_blocks=3, num_reused_blocks=1)
    found = read_perf(SimpleNamespace(timing_metrics=SimpleNamespace(**times), kv_cache_metrics=blocks))
    assert found is not None
    assert (found.first_token_ns, found.new_blocks) == (2_000_000_000, 3)


def test_statistics_add_up_and_missing_values_stay() -> None:
    iterations = Iterations()
    note(
        iterations, {"iter": 3, "iterLatencyMS": 2.5, "kvCacheStats": {"maxNumBlocks": 9, "usedNumBlocks": 2}}
    )
    note(iterations, {"iter": 4, "iterLatencyMS": 1.5, "inflightBatchingStats": {"numPausedRequests": 1}})
    assert (iterations.count, iterations.busy_ns, iterations.total_blocks) == (4, 4_000_000, 9)
    assert (iterations.used_blocks, iterations.paused) == (2, 1)
