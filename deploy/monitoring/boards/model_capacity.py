"""Capacity, batching and forecasts: the lower half of a model's dashboard."""

from __future__ import annotations

from deploy.monitoring.board import Panel, Query, Section, rate

_OF_MODEL = 'model=~"$model"'
_OF_RELEASE = 'model=~"$model",release=~"$release"'
_OF_REPLICA = _OF_RELEASE + ',replica=~"$replica"'


def _of_each(expr: str) -> tuple[Query, ...]:
    """By release and replica."""
    return (Query(f"max by (release, replica) ({expr}{{{_OF_REPLICA}}})", "@{{release}} {{replica}}"),)


def _for_each(sums: str, counts: str, legend: str) -> Query:
    """What one of a thing has, by the Triton model."""
    by = "release, triton_model"
    each = f"{rate(sums, by, _OF_RELEASE)} / {rate(counts, by, _OF_RELEASE)}"
    return Query(each, "@{{release}} {{triton_model}}" + legend)


ROOM = Section(
    "What is full?",
    (
        Panel(
            "Batch occupancy",
            "Sequences in the batch, as a share of what it may hold now. Near 100 %: all slots are taken.",
            "percentunit",
            _of_each("inflight_replica_batch_occupancy_ratio"),
            width=8,
            no_value="no engine reports it",
        ),
        Panel(
            "Cache reserved",
            "Share of the KV cache that is reserved for requests in flight. Near 100 %: the cache is full.",
            "percentunit",
            (
                Query(
                    "model_release:inflight_kv_reserved:ratio{" + _OF_RELEASE + "}", "{{model}}@{{release}}"
                ),
            ),
            width=8,
            largest=1.0,
            no_value="no engine reports it",
        ),
        Panel(
            "Engines busy",
            "Share of the last seconds with a step in flight. Above 90 % while requests wait: the engine "
            "is the bottleneck.",
            "percentunit",
            _of_each("inflight_replica_busy_ratio"),
            width=8,
            largest=1.0,
            no_value="no engine reports it",
        ),
        Panel(
            "Time to drain",
            "Until all work in flight and waiting would be done.",
            "s",
            (Query("max by (release) (inflight_drain_seconds{" + _OF_RELEASE + "})", "@{{release}}"),),
            width=8,
            no_value="not known yet",
        ),
        Panel(
            "Work in flight on each replica",
            "Estimated tokens that are still to be computed there.",
            "short",
            (
                Query(
                    "sum by (release, replica) (inflight_replica_outstanding_tokens{" + _OF_REPLICA + "})",
                    "@{{release}} {{replica}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Replicas: up and wanted",
            "Replicas that take requests, and how many the load needs.",
            "short",
            (
                Query(
                    "sum by (model) (max by (model, release, replica) (inflight_replica_up{"
                    + _OF_MODEL
                    + "}))",
                    "{{model}} up",
                ),
                Query(
                    "max by (model) (inflight_wanted_replicas{" + _OF_MODEL + "})",
                    "{{model}} wanted",
                ),
            ),
            width=8,
        ),
    ),
)

BATCHES = Section(
    "Do batches form in Triton?",
    (
        Panel(
            "Queue delay in force",
            "How long Triton waits at most to form a batch; set from the objective (inflight tune explain).",
            "s",
            (
                Query(
                    "max by (release, triton_model) (inflight_queue_delay_seconds{" + _OF_RELEASE + "})",
                    "@{{release}} {{triton_model}}",
                ),
            ),
            width=8,
            no_value="Triton batches nothing",
        ),
        Panel(
            "Rows in a batch",
            "Mean rows that Triton computed in one batch.",
            "short",
            (_for_each("inflight_triton_rows_total", "inflight_triton_executions_total", ""),),
            width=8,
            no_value="Triton batches nothing",
        ),
        Panel(
            "Waiting for a batch, and computing it",
            "Mean time of a request in Triton's queue, waiting for a batch included, and in the model.",
            "s",
            (
                _for_each("inflight_triton_queue_seconds_total", "inflight_triton_requests_total", " queue"),
                _for_each(
                    "inflight_triton_compute_seconds_total", "inflight_triton_requests_total", " compute"
                ),
            ),
            width=8,
            no_value="Triton batches nothing",
        ),
    ),
)

FORECAST = Section(
    "Can its forecasts be trusted?",
    (
        Panel(
            "Forecasts met",
            "First tokens within their forecast; 90 % should be. Far below, requests are admitted that are "
            "answered too late, or refused that would have been in time.",
            "percentunit",
            (
                Query(
                    "model_release:inflight_forecasts_covered:ratio_rate30m{" + _OF_RELEASE + "}",
                    "{{model}}@{{release}}",
                ),
            ),
            largest=1.0,
            no_value="no predictions",
        ),
        Panel(
            "Error of predicted steps",
            "Mean error of the learned step cost, as a share of it.",
            "percentunit",
            _of_each("inflight_replica_step_cost_error_ratio"),
            no_value="nothing learned yet",
        ),
    ),
)
