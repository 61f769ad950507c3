"""What Triton itself and its machine say: the lower half of the engine's dashboard."""

from __future__ import annotations

from deploy.monitoring.board import Panel, Query, Section
from deploy.monitoring.boards.engine_queries import NAME, each, rate_each

_NO_GPU = "no GPU"


def _seconds_each(metric: str) -> str:
    """Of Triton's sums of microseconds: for a request."""
    return f"{rate_each(metric)} / {rate_each('nv_inference_request_success')} / 1e6"


def _p95(metric: str) -> str:
    """Of Triton's summaries, by server: quantiles cannot be added up."""
    chosen = each(metric, 'quantile="0.95"')
    return f"max by (model, instance) ({chosen}) / 1e6"


TRITON_ITSELF = Section(
    "What does Triton report?",
    (
        Panel(
            "Requests to Triton models",
            "Answered each second by Triton model, and failures.",
            "reqps",
            (
                Query(rate_each("nv_inference_request_success"), NAME),
                Query(rate_each("nv_inference_request_failure"), f"{NAME} failed"),
            ),
        ),
        Panel(
            "Triton's queue, a request",
            "Time in Triton's queue, waiting for a batch included: the mean, and p95 of the last minute.",
            "s",
            (
                Query(_seconds_each("nv_inference_queue_duration_us"), f"{NAME} mean"),
                Query(_p95("nv_inference_queue_summary_us"), f"{NAME} p95"),
            ),
        ),
        Panel(
            "Triton's compute, a request",
            "Time in the model itself: the mean, and p95 of the last minute. Streaming models release "
            "their request at once, so their times here are short.",
            "s",
            (
                Query(_seconds_each("nv_inference_compute_infer_duration_us"), f"{NAME} mean"),
                Query(_p95("nv_inference_compute_infer_summary_us"), f"{NAME} p95"),
            ),
            width=8,
        ),
        Panel(
            "Rows in a batch",
            "Mean rows that Triton passed to a model in one batch.",
            "short",
            (
                Query(
                    rate_each("nv_inference_count") + " / " + rate_each("nv_inference_exec_count"),
                    NAME,
                ),
            ),
            width=8,
        ),
        Panel(
            "Pending in Triton",
            "Requests in Triton's own queues.",
            "short",
            (Query(each("nv_inference_pending_request_count"), NAME),),
            width=8,
        ),
    ),
)

_OF_MACHINE = 'instance=~"$triton"'
_GPU = "{{instance}} {{gpu_uuid}}"
MACHINE = Section(
    "How busy is the machine?",
    (
        Panel(
            "CPU",
            "Of the machine that Triton runs on, over all cores.",
            "percentunit",
            (Query("nv_cpu_utilization{" + _OF_MACHINE + "}", "{{instance}}"),),
            width=8,
            largest=1.0,
        ),
        Panel(
            "Memory of the machine",
            "Used, and total.",
            "bytes",
            (
                Query("nv_cpu_memory_used_bytes{" + _OF_MACHINE + "}", "{{instance}} used"),
                Query("nv_cpu_memory_total_bytes{" + _OF_MACHINE + "}", "{{instance}} all"),
            ),
            width=8,
        ),
        Panel(
            "GPU in use (GPU only)",
            "Share of the time in which a kernel ran; it does not show how much of the GPU a kernel uses.",
            "percentunit",
            (Query("nv_gpu_utilization{" + _OF_MACHINE + "}", _GPU),),
            width=8,
            largest=1.0,
            no_value=_NO_GPU,
        ),
        Panel(
            "GPU memory (GPU only)",
            "Used, and total. The engine allocates its part at the start, and keeps it.",
            "bytes",
            (
                Query("nv_gpu_memory_used_bytes{" + _OF_MACHINE + "}", f"{_GPU} used"),
                Query("nv_gpu_memory_total_bytes{" + _OF_MACHINE + "}", f"{_GPU} all"),
            ),
            no_value=_NO_GPU,
        ),
        Panel(
            "GPU power (GPU only)",
            "Power draw, and the limit.",
            "watt",
            (
                Query("nv_gpu_power_usage{" + _OF_MACHINE + "}", _GPU),
                Query("nv_gpu_power_limit{" + _OF_MACHINE + "}", f"{_GPU} limit"),
            ),
            no_value=_NO_GPU,
        ),
    ),
)
