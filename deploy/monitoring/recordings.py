"""What dashboards and alerts both ask for, computed once."""

from __future__ import annotations

from deploy.monitoring.rules import Group, Recording

WINDOWS = ("5m", "30m", "1h", "6h")


def _missed(window: str) -> Recording:
    return Recording(
        f"model_tier_metric:inflight_objective_missed:ratio_rate{window}",
        f"sum by (model, tier, metric) (rate(inflight_objective_missed_total[{window}]))\n"
        f"/ sum by (model, tier, metric) (rate(inflight_objective_judged_total[{window}]))",
    )


def _failed(level: str, by: str, window: str) -> Recording:
    """0 where something ended and nothing failed: a counter that has counted nothing may be absent."""
    ended = f"sum by ({by}) (rate(inflight_requests_ended_total[{window}]))"
    failed = f'sum by ({by}) (rate(inflight_requests_ended_total{{outcome="failed"}}[{window}]))'
    return Recording(
        f"{level}:inflight_requests_failed:ratio_rate{window}", f"({failed} or 0 * {ended})\n/ {ended}"
    )


def _first_token_p95(window: str) -> Recording:
    buckets = f"rate(inflight_time_to_first_token_seconds_bucket[{window}])"
    return Recording(
        f"model_release:inflight_time_to_first_token_seconds:p95_rate{window}",
        f"histogram_quantile(0.95, sum by (le, model, release) ({buckets}))",
    )


# Each router keeps what it has given out itself, and each knows of all the cache.
_KV_RESERVED = Recording(
    "model_release:inflight_kv_reserved:ratio",
    "sum by (model, release) (inflight_kv_reserved_tokens)\n"
    "/ max by (model, release) (inflight_kv_budget_tokens)",
)
# A release that is being tried: by a rollout, or where there is none, by the smaller part of a split.
_CANARIES = Recording(
    "model_release:inflight_canary_share:max",
    "(max by (model, release) (inflight_release_share) > 0 < 0.5\n"
    "    unless on (model) max by (model) (inflight_rollout_step))\n"
    "or (max by (model, release) (inflight_release_share) > 0\n"
    "    and on (model, release) max by (model, release) (inflight_rollout_step))",
)
_FORECASTS = Recording(
    "model_release:inflight_forecasts_covered:ratio_rate30m",
    "sum by (model, release) (rate(inflight_forecasts_covered_total[30m]))\n"
    "/ sum by (model, release) (rate(inflight_forecasts_total[30m]))",
)
_ENDED = Recording(
    "model_release:inflight_requests_ended:increase10m",
    "sum by (model, release) (increase(inflight_requests_ended_total[10m]))",
)

GROUPS = (
    Group("inflight-objectives-recorded", tuple(_missed(window) for window in WINDOWS)),
    Group(
        "inflight-requests-recorded",
        (
            _failed("model", "model", "5m"),
            _failed("model_release", "model, release", "10m"),
            _ENDED,
            _first_token_p95("10m"),
            _KV_RESERVED,
            _CANARIES,
            _FORECASTS,
        ),
    ),
)
