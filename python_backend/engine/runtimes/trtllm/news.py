"""What TensorRT-LLM tells of one sequence, taken from its result while that grows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np

from python_backend.engine.runtimes.hosted.news import HostPerf, News, log_prob_row


class Reader:
    """One for each sequence. Its result is one object that grows; `read` tells what it has not told yet."""

    def __init__(self) -> None:
        self._told = 0

    def read(self, result: Any) -> News:
        output = result.outputs[0]
        ids = list(output.token_ids[self._told :])
        rows = list(output.logprobs or ())[self._told : self._told + len(ids)]
        news = News(
            ids,
            [log_prob_row(token_id, row) for token_id, row in zip(ids, rows, strict=False)],
            output.finish_reason,
            output.stop_reason is not None,
            bool(result.finished),
        )
        self._told += len(ids)
        if news.is_last:
            news.prompt_logits = as_rows(result.context_logits)
            news.generation_logits = as_rows(output.generation_logits)
            news.perf = read_perf(output.request_perf_metrics)
            news.cached_tokens = getattr(result, "cached_tokens", 0) or 0
        return news


def read_perf(told: Any) -> HostPerf | None:
    """None where it tells nothing, or not as it was published: our own clocks hold then."""
    try:
        times, blocks = told.timing_metrics, told.kv_cache_metrics
        return HostPerf(
            _ns(times.first_scheduled_time),
            _ns(times.first_token_time),
            _ns(times.last_token_time),
            blocks.num_new_allocated_blocks,
            blocks.num_reused_blocks,
        )
    except AttributeError:
        return None


def _ns(time: timedelta) -> int:
    return round(time.total_seconds() * 1e9)


def as_rows(tensor: Any) -> np.ndarray[Any, Any] | None:
    """A tensor of any precision, on any device."""
    if tensor is None:
        return None
    array: np.ndarray[Any, Any] = tensor.detach().float().cpu().numpy()
    return array.reshape(-1, array.shape[-1])
