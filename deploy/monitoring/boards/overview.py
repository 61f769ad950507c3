"""Is all well, and if not, where to look next."""

from __future__ import annotations

from deploy.monitoring.board import TOKENS_PER_S, Board, Panel, Query, Section, quantile, rate
from deploy.monitoring.boards.routers import ROUTERS

_MODEL = 'model=~"$model"'
_KEPT = ((0.0, "red"), (0.95, "green"))
_GOOD_AT_0 = ((0.0, "green"), (0.01, "orange"), (0.05, "red"))

_AT_A_GLANCE = Section(
    "Is everything healthy?",
    (
        Panel(
            "Replicas up",
            "Of all releases with traffic: replicas that take requests, and all replicas.",
            "short",
            (
                Query(
                    "sum(max by (model, release, replica) (inflight_replica_up{"
                    + _MODEL
                    + "}) and on (model, release) (max by (model, release) (inflight_release_share) > 0))",
                    "up",
                ),
                Query(
                    "count(max by (model, release, replica) (inflight_replica_up{"
                    + _MODEL
                    + "}) and on (model, release) (max by (model, release) (inflight_release_share) > 0))",
                    "of",
                ),
            ),
            kind="number",
            width=4,
            height=4,
        ),
        Panel(
            "Objectives kept",
            "The objective that is met worst: the share of its requests that were in time in the last 5 "
            "minutes. The target is 95 %.",
            "percentunit",
            (Query("min(inflight_objective_attained_ratio{" + _MODEL + "})", "worst"),),
            kind="number",
            width=4,
            height=4,
            no_value="no objective, or no measurements",
            steps=_KEPT,
        ),
        Panel(
            "Requests that failed",
            "Accepted requests that failed, as a share of all that ended in the last 5 minutes.",
            "percentunit",
            (Query("max(model:inflight_requests_failed:ratio_rate5m{" + _MODEL + "})", "worst model"),),
            kind="number",
            width=4,
            height=4,
            no_value="no requests",
            steps=_GOOD_AT_0,
        ),
        Panel(
            "Waiting now",
            "Accepted requests that wait in the router's queue.",
            "short",
            (Query("sum(inflight_waiting_requests{" + _MODEL + "})", "waiting"),),
            kind="number",
            width=4,
            height=4,
        ),
        Panel(
            "Replicas wanted",
            "How many the load needs, by model; the highest number of all routers.",
            "short",
            (Query("max by (model) (inflight_wanted_replicas{" + _MODEL + "})", "{{model}}"),),
            kind="number",
            width=4,
            height=4,
        ),
        Panel(
            "Alerts firing",
            "Of this project's rules; docs/alerts.md says what each means and what to do.",
            "short",
            (Query('sum by (alertname) (ALERTS{alertstate="firing"})', "{{alertname}}"),),
            kind="number",
            width=4,
            height=4,
            no_value="none",
        ),
    ),
)

_TRAFFIC = Section(
    "How much is requested and answered?",
    (
        Panel(
            "Requests by model",
            "Requests answered each second, including refusals and errors.",
            "reqps",
            (Query(rate("inflight_requests_total", "model", _MODEL), "{{model}}"),),
        ),
        Panel(
            "Tokens by direction",
            "Prompt tokens read and answer tokens delivered, each second.",
            TOKENS_PER_S,
            (
                Query(rate("inflight_prompt_tokens_total", "model", _MODEL), "{{model}} prompts"),
                Query(rate("inflight_completion_tokens_total", "model", _MODEL), "{{model}} answers"),
            ),
        ),
        Panel(
            "Errors by status",
            "Responses with an HTTP status of 400 or above, with or without a model. 429: limits or budget "
            "of a key; 503: busy, or no engine; 500: a bug.",
            "reqps",
            (Query(rate("inflight_requests_total", "status", 'status=~"4..|5.."'), "{{status}}"),),
            width=8,
            no_value="no errors",
        ),
        Panel(
            "Errors by kind",
            "The error that Triton or the engine reported for a failed request.",
            "reqps",
            (Query(rate("inflight_triton_errors_total", "kind", _MODEL), "{{kind}}"),),
            width=8,
            no_value="no errors",
        ),
        Panel(
            "Refusals by reason",
            "By admission: busy (at once), too_late (timed out in the queue), too_large (does not fit the"
            " cache).",
            "reqps",
            (
                Query(
                    rate("inflight_refused_requests_total", "tier, reason", _MODEL),
                    "{{tier}} {{reason}}",
                ),
            ),
            width=8,
            no_value="no refusals",
        ),
    ),
)

_LATENCY = Section(
    "Is it in time?",
    (
        Panel(
            "Time to first token",
            "From arrival at the router. The objective is the strictest of all tiers.",
            "s",
            (
                Query(
                    quantile(0.5, "inflight_time_to_first_token_seconds", "model", _MODEL), "{{model}} p50"
                ),
                Query(
                    quantile(0.95, "inflight_time_to_first_token_seconds", "model", _MODEL), "{{model}} p95"
                ),
                Query(
                    'min by (model) (inflight_objective_seconds{metric="first_token",' + _MODEL + "})",
                    "{{model}} objective",
                ),
            ),
        ),
        Panel(
            "Time between tokens",
            "Between two chunks of a stream, and the strictest objective of all tiers.",
            "s",
            (
                Query(quantile(0.5, "inflight_inter_chunk_seconds", "model", _MODEL), "{{model}} p50"),
                Query(quantile(0.95, "inflight_inter_chunk_seconds", "model", _MODEL), "{{model}} p95"),
                Query(
                    'min by (model) (inflight_objective_seconds{metric="inter_token",' + _MODEL + "})",
                    "{{model}} objective",
                ),
            ),
        ),
        Panel(
            "Objectives attained",
            "Share of requests, or tokens, that were in time in the last 5 minutes; the target is 95 %.",
            "percentunit",
            (
                Query(
                    "min by (model, tier, metric) (inflight_objective_attained_ratio{" + _MODEL + "})",
                    "{{model}} {{tier}} {{metric}}",
                ),
            ),
            largest=1.0,
            no_value="no objective, or no measurements",
        ),
        Panel(
            "Is the error budget being spent?",
            "Burn rate, relative to the 5 % that an objective allows: 1 spends a month's budget in a "
            "month, at 20 everything misses. Alerts fire at 6 (an hour) and 2 (six hours).",
            "short",
            (
                Query(
                    "model_tier_metric:inflight_objective_missed:ratio_rate1h{" + _MODEL + "} / 0.05",
                    "{{model}} {{tier}} {{metric}} 1 h",
                ),
                Query(
                    "model_tier_metric:inflight_objective_missed:ratio_rate6h{" + _MODEL + "} / 0.05",
                    "{{model}} {{tier}} {{metric}} 6 h",
                ),
            ),
            no_value="no objective, or no measurements",
        ),
    ),
)

_TIME = Section(
    "Where does the time go?",
    (
        Panel(
            "Stages of a request",
            "Mean seconds of a request in each stage; together they are its whole time. queue and "
            "engine_queue grow when requests wait for capacity, preprocessing when Triton waits for a "
            "batch or the CPU is busy, prefill and decode when the model is slow, send when clients read "
            "slowly.",
            "s",
            (
                Query(
                    rate("inflight_stage_seconds_sum", "stage", _MODEL)
                    + " / ignoring (stage) group_left () sum(rate(inflight_request_seconds_count{"
                    + _MODEL
                    + "}[$__rate_interval]))",
                    "{{stage}}",
                ),
            ),
            kind="stacked",
        ),
        Panel(
            "In flight and waiting",
            "Accepted and not ended; of those, waiting in the router's queue.",
            "short",
            (
                Query("sum by (model) (inflight_requests_in_flight{" + _MODEL + "})", "{{model}} in flight"),
                Query("sum by (model) (inflight_waiting_requests{" + _MODEL + "})", "{{model}} waiting"),
            ),
        ),
    ),
)

_CAPACITY = Section(
    "Is there capacity left?",
    (
        Panel(
            "Time to drain",
            "Until all work in flight and waiting would be done, by the learned cost, on the current "
            "replicas.",
            "s",
            (
                Query(
                    "max by (model, release) (inflight_drain_seconds{" + _MODEL + "})",
                    "{{model}}@{{release}}",
                ),
            ),
            width=8,
            no_value="not known yet",
        ),
        Panel(
            "Cache reserved",
            "Share of the KV cache that is reserved for requests in flight. Near 100 % with requests "
            "waiting, the cache is the bottleneck.",
            "percentunit",
            (
                Query(
                    "model_release:inflight_kv_reserved:ratio{" + _MODEL + "}",
                    "{{model}}@{{release}}",
                ),
            ),
            width=8,
            largest=1.0,
            no_value="no engine reports it",
        ),
        Panel(
            "Engines busy",
            "Share of the last seconds with a step in flight.",
            "percentunit",
            (
                Query(
                    "max by (model, release, replica) (inflight_replica_busy_ratio{" + _MODEL + "})",
                    "{{model}}@{{release}} {{replica}}",
                ),
            ),
            width=8,
            largest=1.0,
            no_value="no engine reports it",
        ),
        Panel(
            "Replicas up by release",
            "Replicas that requests are sent to.",
            "short",
            (
                Query(
                    "sum by (model, release) (max by (model, release, replica) (inflight_replica_up{"
                    + _MODEL
                    + "}))",
                    "{{model}}@{{release}}",
                ),
            ),
            width=12,
        ),
        Panel(
            "Replicas wanted by model",
            "How many the load needs at 70 % use; for autoscalers.",
            "short",
            (Query("max by (model) (inflight_wanted_replicas{" + _MODEL + "})", "{{model}}"),),
            width=12,
        ),
    ),
)

BOARD = Board(
    "inflight-overview",
    "Inflight: overview",
    "Is everything healthy, and if not, where to look next. docs/dashboards.md.",
    (_AT_A_GLANCE, _TRAFFIC, _LATENCY, _TIME, _CAPACITY, ROUTERS),
)
