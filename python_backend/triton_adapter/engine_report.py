"""The engine's report: put together from what it said last, and sent to who asks."""

from __future__ import annotations

from typing import Any

import numpy as np

from python_backend.engine.report import Gauges, Ready
from python_backend.triton_adapter import pb
from python_backend.triton_adapter.request_parameters import Configuration, Limits
from python_backend.wire.engine_report import ENGINE_REPORT, EngineReport
from python_backend.wire.parameters import EngineParameters


def idle_gauges(capacity: Ready, limits: Limits) -> Gauges:
    """Of an engine that has just been started, and has said nothing yet."""
    return Gauges(
        step_count=0,
        active=0,
        scheduled=0,
        context=0,
        waiting=0,
        paused=0,
        used_blocks=0,
        total_blocks=capacity.total_blocks,
        context_tokens=0,
        max_batch_size=limits.max_batch_size,
        max_step_tokens=limits.max_step_tokens,
    )


def report_of(
    capacity: Ready, now: Gauges, configuration: Configuration, parameters: EngineParameters
) -> EngineReport:
    targets = configuration.inter_token_ms
    return EngineReport(
        max_batch_size=now.max_batch_size,
        max_step_tokens=now.max_step_tokens,
        most_batch_size=configuration.limits.max_batch_size,
        most_step_tokens=configuration.limits.max_step_tokens,
        total_blocks=now.total_blocks,
        used_blocks=now.used_blocks,
        tokens_per_block=capacity.tokens_per_block,
        active=now.active,
        waiting=now.waiting,
        holds_whole_answers=parameters.guaranteed_no_evict,
        step_count=now.step_count,
        busy_ns=now.busy_ns,
        inter_token_ms={tier.label: ms for tier, ms in targets.items() if ms is not None},
        learned=now.learned,
        paused=now.paused,
        can_pause=capacity.can_pause,
        max_images=capacity.max_images,
        image_tokens=capacity.image_tokens,
        pool=parameters.inflight_pool,
        window_tokens=capacity.window_tokens,
        window_blocks=capacity.window_blocks,
        keeps_all=capacity.keeps_all,
    )


def report_response(report: EngineReport) -> Any:
    text = pb.tensor(ENGINE_REPORT, [[report.to_text().encode()]], np.object_)
    return pb.utils().InferenceResponse(output_tensors=[text])
