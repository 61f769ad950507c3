"""When somebody should look, and how soon."""

from __future__ import annotations

from deploy.monitoring.prometheus import ROUTER, TRITON
from deploy.monitoring.rules import Alert, Group

_MISSED = "model_tier_metric:inflight_objective_missed:ratio_rate"
_FAILED = "model_release:inflight_requests_failed:ratio_rate10m"
_P95 = "model_release:inflight_time_to_first_token_seconds:p95_rate10m"
_CANARY = "model_release:inflight_canary_share:max"
_SERVING = "(max by (model, release) (inflight_release_share) > 0)"
_WAITING = "sum by (model, release) (inflight_waiting_requests)"

# An objective is for 95 of 100: 5 of 100 are the budget, and what misses it can be at most 20 times that.
# The usual factors, 14.4 and 6, are made for budgets of a thousandth: here they would ask for 72 and 30 of
# 100 missed. These ask for 30 and 10, which spend a month's budget in 5 and in 15 days.
BUDGET = 0.05
FAST, SLOW = 6, 2
_ENOUGH = 20  # with fewer requests a single slow one would be a burning budget


def _burning(times: int, long: str, short: str) -> str:
    limit = f"{times * BUDGET:g}"
    judged = f"sum by (model, tier, metric) (increase(inflight_objective_judged_total[{long}]))"
    return f"{_MISSED}{long} > {limit}\nand {_MISSED}{short} > {limit}\nand {judged} >= {_ENOUGH}"


_OBJECTIVES = Group(
    "inflight-objectives",
    (
        Alert(
            "InflightObjectiveBurnsFast",
            "critical",
            _burning(FAST, "1h", "5m"),
            "2m",
            "{{ $labels.model }} misses its {{ $labels.metric }} objective",
            "{{ $value | humanizePercentage }} of the last hour missed the {{ $labels.metric }} objective "
            "of {{ $labels.model }}, tier {{ $labels.tier }}, and it continues; 5% are allowed. A month's "
            "budget is spent in 5 days or less.",
        ),
        Alert(
            "InflightObjectiveBurnsSlowly",
            "warning",
            _burning(SLOW, "6h", "30m"),
            "15m",
            "{{ $labels.model }} misses its {{ $labels.metric }} objective too often",
            "{{ $value | humanizePercentage }} of the last 6 hours missed the {{ $labels.metric }} "
            "objective of {{ $labels.model }}, tier {{ $labels.tier }}, and it continues; 5% are allowed.",
        ),
        Alert(
            "InflightRequestsRefused",
            "warning",
            'sum by (model, tier) (rate(inflight_refused_requests_total{reason=~"busy|too_late"}[10m]))\n'
            "/ on (model) group_left () sum by (model) (rate(inflight_requests_total[10m]))\n"
            "> 0.05",
            "10m",
            "{{ $labels.model }} refuses {{ $labels.tier }} requests",
            "{{ $value | humanizePercentage }} of the requests to {{ $labels.model }} are refused because "
            "they would be answered too late, all of the tier {{ $labels.tier }}.",
        ),
        Alert(
            "InflightRequestsFail",
            "critical",
            "model:inflight_requests_failed:ratio_rate5m > 0.05\n"
            "and sum by (model) (increase(inflight_requests_ended_total[5m])) >= 20",
            "3m",
            "Requests to {{ $labels.model }} fail",
            "{{ $value | humanizePercentage }} of the accepted requests to {{ $labels.model }} were not"
            " answered in the last 5 minutes.",
        ),
        Alert(
            "InflightForecastsWrong",
            "warning",
            "model_release:inflight_forecasts_covered:ratio_rate30m < 0.75\n"
            "and sum by (model, release) (increase(inflight_forecasts_total[30m])) >= 50",
            "15m",
            "{{ $labels.model }}@{{ $labels.release }} is slower than predicted",
            "Only {{ $value | humanizePercentage }} of the first tokens of "
            "{{ $labels.model }}@{{ $labels.release }} came within their forecast; 90% should.",
        ),
    ),
)

_QUEUE = Group(
    "inflight-queue",
    (
        Alert(
            "InflightQueueGrows",
            "warning",
            f"{_WAITING} > 10\n"
            f"and {_WAITING} > 1.5 * sum by (model, release) (inflight_waiting_requests offset 10m)",
            "5m",
            "More and more requests wait for {{ $labels.model }}@{{ $labels.release }}",
            "{{ $value }} requests wait for {{ $labels.model }}@{{ $labels.release }}, over 1.5 times as "
            "many as 10 minutes ago.",
        ),
        Alert(
            "InflightDrainGrows",
            "warning",
            "max by (model, release) (inflight_drain_seconds) > 30\n"
            "and max by (model, release) (deriv(inflight_drain_seconds[10m])) > 0",
            "10m",
            "{{ $labels.model }}@{{ $labels.release }} falls behind",
            "The work in flight and waiting at {{ $labels.model }}@{{ $labels.release }} would take "
            "{{ $value | humanizeDuration }}, and it is growing.",
        ),
        Alert(
            "InflightReplicasWanted",
            "warning",
            "max by (model) (inflight_wanted_replicas)\n"
            "> sum by (model) (max by (model, release, replica) (inflight_replica_up))",
            "15m",
            "{{ $labels.model }} needs {{ $value }} replicas",
            "The load on {{ $labels.model }} needs {{ $value }} replicas, and fewer are up.",
        ),
        Alert(
            "InflightBatchTierStands",
            "warning",
            'sum by (model, release) (min_over_time(inflight_waiting_requests{tier="batch"}[30m])) > 0\n'
            'and sum by (model, release) (inflight_waiting_requests{tier="batch"})\n'
            '    >= sum by (model, release) (inflight_waiting_requests{tier="batch"} offset 30m)',
            "15m",
            "Requests of the tier batch are starved at {{ $labels.model }}@{{ $labels.release }}",
            "For half an hour requests of the tier batch have waited for "
            "{{ $labels.model }}@{{ $labels.release }}, and their number does not fall.",
        ),
        Alert(
            "InflightTenantNoisy",
            "info",
            "max by (model, tenant) (inflight_noisy_tenant_ratio) > 2",
            "10m",
            "{{ $labels.tenant }} asks {{ $labels.model }} for more than its share",
            "{{ $labels.tenant }} asks {{ $labels.model }} for {{ $value | humanize }} times its fair"
            " share while others wait.",
        ),
    ),
)

_CACHE = Group(
    "inflight-cache",
    (
        Alert(
            "InflightKvPressure",
            "warning",
            f"model_release:inflight_kv_reserved:ratio > 0.9\nand {_WAITING} > 0",
            "5m",
            "The cache of {{ $labels.model }}@{{ $labels.release }} is full",
            "{{ $value | humanizePercentage }} of the KV cache of"
            " {{ $labels.model }}@{{ $labels.release }} is reserved, and requests wait.",
        ),
        Alert(
            "InflightPreemptions",
            "warning",
            "sum by (model, instance) (rate(inflight_engine_preemptions_total[10m])) > 0.1",
            "10m",
            "{{ $labels.model }} on {{ $labels.instance }} preempts sequences",
            "{{ $value | humanize }} sequences a second are preempted in {{ $labels.model }} on "
            "{{ $labels.instance }} because the cache is full, and have to be computed again.",
        ),
    ),
)

_REPLICAS = Group(
    "inflight-replicas",
    (
        Alert(
            "InflightReplicaDown",
            "warning",
            "max by (model, release, replica) (inflight_replica_up) == 0\n"
            f"and on (model, release) {_SERVING}",
            "2m",
            "{{ $labels.model }}@{{ $labels.release }} is down on {{ $labels.replica }}",
            "No requests are sent to {{ $labels.model }}@{{ $labels.release }} on {{ $labels.replica }}, "
            "which should serve.",
        ),
        Alert(
            "InflightNothingUp",
            "critical",
            "sum by (model) (max by (model, release, replica) (inflight_replica_up)\n"
            f"    and on (model, release) {_SERVING}) == 0",
            "1m",
            "{{ $labels.model }} is down",
            "No replica of {{ $labels.model }} that should serve takes requests: all requests fail.",
        ),
        Alert(
            "InflightModelRevived",
            "info",
            "sum by (model, release, replica) (increase(inflight_model_revivals_total[10m])) > 0",
            "",
            "A process of {{ $labels.model }}@{{ $labels.release }} on {{ $labels.replica }} died",
            "It was reloaded; answers in flight were generated again, or failed.",
        ),
        Alert(
            "InflightModelDiesAgain",
            "critical",
            "sum by (model, release, replica) (increase(inflight_model_revivals_total[30m])) > 2",
            "",
            "{{ $labels.model }}@{{ $labels.release }} on {{ $labels.replica }} dies repeatedly",
            "It was reloaded {{ $value | humanize }} times in half an hour.",
        ),
        Alert(
            "InflightEngineStands",
            "critical",
            "max by (model, instance) (\n"
            '    min_over_time(nv_trt_llm_request_metrics{request_type="active"}[3m])) > 0\n'
            "and max by (model, instance) (\n"
            '    changes(nv_trt_llm_general_metrics{general_type="iteration_counter"}[3m])) == 0',
            "1m",
            "{{ $labels.model }} on {{ $labels.instance }} is stuck: it has requests and makes no steps",
            "{{ $value }} sequences are in the engine {{ $labels.model }} on {{ $labels.instance }}, which"
            " has made no step in 3 minutes.",
        ),
        Alert(
            "InflightStepCostFrozen",
            "warning",
            "max by (model, release, replica) (inflight_replica_step_cost_frozen) == 1\n"
            "and sum by (model, release, replica) (increase(inflight_replica_requests_total[10m]))"
            f" >= {_ENOUGH}",
            "10m",
            "Steps of {{ $labels.model }}@{{ $labels.release }} on {{ $labels.replica }} differ from their "
            "learned cost",
            "Predicted step times on {{ $labels.replica }} are off by so much that forecasts and step "
            "limits use the last good cost.",
        ),
    ),
)


def _canary_worse(figure: str, limit: str) -> str:
    """Where enough of its requests have ended, beside the stable release, or the worst of several."""
    return (
        f"({figure}\n"
        f"  and on (model, release) {_CANARY}\n"
        f"  and on (model, release) model_release:inflight_requests_ended:increase10m >= {_ENOUGH})\n"
        f"> on (model) group_left ()\n"
        f"{limit} max by (model) ({figure} unless on (model, release) {_CANARY})"
    )


_RELEASES = Group(
    "inflight-releases",
    (
        Alert(
            "InflightCanaryFails",
            "warning",
            _canary_worse(_FAILED, "0.02 + 2 *"),
            "2m",
            "{{ $labels.model }}@{{ $labels.release }} fails more often than the release before it",
            "{{ $value | humanizePercentage }} of its requests failed in the last 10 minutes, more than"
            " twice as many as of the stable release.",
        ),
        Alert(
            "InflightCanarySlow",
            "warning",
            _canary_worse(_P95, "1.5 *"),
            "5m",
            "{{ $labels.model }}@{{ $labels.release }} is slower than the release before it",
            "The first token of 95 of 100 requests comes within {{ $value | humanizeDuration }}, more than "
            "1.5 times that of the stable release.",
        ),
        Alert(
            "InflightRolledBack",
            "warning",
            "sum by (model) (increase(inflight_rollbacks_total[1h])) > 0",
            "",
            "A rollout of {{ $labels.model }} was rolled back",
            "The canary failed its gates; all requests of {{ $labels.model }} go to the stable release.",
        ),
    ),
)

_PARTS = Group(
    "inflight-parts",
    (
        Alert(
            "InflightRouterDown",
            "critical",
            f'up{{job="{ROUTER}"}} == 0\nor absent(up{{job="{ROUTER}"}})',
            "1m",
            "A router does not answer",
            "Prometheus cannot scrape the router {{ $labels.instance }}, or has no router to scrape.",
        ),
        Alert(
            "InflightTritonUnreachable",
            "warning",
            f'up{{job="{TRITON}"}} == 0\nor absent(up{{job="{TRITON}"}})',
            "2m",
            "A Triton server does not answer",
            "Prometheus cannot scrape the Triton server {{ $labels.instance }}, or has no Triton server to "
            "scrape.",
        ),
        Alert(
            "InflightStoreUnreachable",
            "critical",
            "inflight_store_reachable == 0",
            "2m",
            "The router {{ $labels.instance }} cannot reach the store",
            "It uses the keys and limits that it knew last, keeps usage on disk, and no release can be "
            "changed.",
        ),
        Alert(
            "InflightRedisUnreachable",
            "warning",
            "inflight_redis_reachable == 0",
            "5m",
            "The router {{ $labels.instance }} cannot reach Redis",
            "It counts limits and slots on its own, as if there were no other routers: tenants may exceed "
            "their limits.",
        ),
        Alert(
            "InflightRouterStalls",
            "warning",
            "sum by (instance) (increase(inflight_event_loop_stall_seconds_count[10m]))\n"
            '- sum by (instance) (increase(inflight_event_loop_stall_seconds_bucket{le="0.25"}[10m]))\n'
            "> 10",
            "5m",
            "The event loop of the router {{ $labels.instance }} stalls",
            "{{ $value | humanize }} times in 10 minutes its event loop stalled for 0.25 s or more: all "
            "streams pause meanwhile.",
        ),
        Alert(
            "InflightUsageSpoolGrows",
            "warning",
            "inflight_usage_spool_bytes > 1e6\nand deriv(inflight_usage_spool_bytes[15m]) > 0",
            "15m",
            "Usage does not reach the store",
            "{{ $value | humanize1024 }}B of usage records are on the disk of {{ $labels.instance }}, and "
            "growing; when their share of the disk is full, requests are refused.",
        ),
    ),
)

GROUPS = (_OBJECTIVES, _QUEUE, _CACHE, _REPLICAS, _RELEASES, _PARTS)
ALERTS = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert))
