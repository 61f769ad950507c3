"""Who uses how much, who is refused, and who delays others."""

from __future__ import annotations

from deploy.monitoring.board import MODEL, TENANT, TOKENS_PER_S, Board, Panel, Query, Section, quantile, rate

_OF_TENANT = 'model=~"$model",tenant=~"$tenant"'
_COMPLETION = "inflight_completion_tokens_total"

_USE = Section(
    "Who uses how much?",
    (
        Panel(
            "Requests by tenant",
            "Requests answered each second, including refusals and errors.",
            "reqps",
            (Query(rate("inflight_requests_total", "tenant", _OF_TENANT), "{{tenant}}"),),
        ),
        Panel(
            "Tokens of answers by tenant",
            "Tokens delivered each second.",
            TOKENS_PER_S,
            (Query(rate(_COMPLETION, "tenant", _OF_TENANT), "{{tenant}}"),),
            kind="stacked",
        ),
        Panel(
            "Tokens of prompts by tenant",
            "Tokens read each second.",
            TOKENS_PER_S,
            (Query(rate("inflight_prompt_tokens_total", "tenant", _OF_TENANT), "{{tenant}}"),),
            kind="stacked",
        ),
        Panel(
            "Share of all tokens delivered",
            "Tokens of each selected tenant, as a share of those of all tenants.",
            "percentunit",
            (
                Query(
                    rate(_COMPLETION, "tenant", _OF_TENANT)
                    + " / ignoring (tenant) group_left () sum(rate("
                    + _COMPLETION
                    + '{model=~"$model"}[$__rate_interval]))',
                    "{{tenant}}",
                ),
            ),
            largest=1.0,
        ),
        Panel(
            "In flight by tenant",
            "Accepted requests that have not ended.",
            "short",
            (Query("sum by (tenant) (inflight_requests_in_flight{" + _OF_TENANT + "})", "{{tenant}}"),),
        ),
        Panel(
            "Tokens in the selected time range",
            "Of prompts and answers, by tenant and model; for billing, use inflight usage, which is exact.",
            "short",
            (
                Query(
                    "sum by (tenant, model) (increase(inflight_prompt_tokens_total{"
                    + _OF_TENANT
                    + "}[$__range]))",
                    "{{tenant}} {{model}} prompts",
                ),
                Query(
                    "sum by (tenant, model) (increase(" + _COMPLETION + "{" + _OF_TENANT + "}[$__range]))",
                    "{{tenant}} {{model}} answers",
                ),
            ),
            kind="table",
        ),
    ),
)

_TROUBLE = Section(
    "Who is refused, and why?",
    (
        Panel(
            "Limits reached (429)",
            "Requests refused because of the tenant's own limits or budget.",
            "reqps",
            (
                Query(
                    'sum by (tenant) (rate(inflight_requests_total{status="429",tenant=~"$tenant"}'
                    "[$__rate_interval]))",
                    "{{tenant}}",
                ),
            ),
            width=8,
            no_value="none",
        ),
        Panel(
            "Refused because it is busy (503)",
            "Overloaded, or no replica available.",
            "reqps",
            (Query(rate("inflight_requests_total", "tenant", 'status="503",' + _OF_TENANT), "{{tenant}}"),),
            width=8,
            no_value="none",
        ),
        Panel(
            "Failed and cancelled",
            "Accepted requests that did not finish.",
            "reqps",
            (
                Query(
                    rate(
                        "inflight_requests_ended_total",
                        "tenant, outcome",
                        'outcome=~"failed|cancelled",' + _OF_TENANT,
                    ),
                    "{{tenant}} {{outcome}}",
                ),
            ),
            width=8,
            no_value="none",
        ),
        Panel(
            "Who exceeds their share?",
            "A tenant's demand as a multiple of its fair share, while others wait or would wait if it were "
            "not throttled.",
            "short",
            (
                Query(
                    "max by (model, tenant) (inflight_noisy_tenant_ratio{" + _OF_TENANT + "})",
                    "{{tenant}} of {{model}}",
                ),
            ),
            width=24,
            height=6,
            no_value="nobody",
        ),
    ),
)

_LATENCY = Section(
    "Who waits?",
    (
        Panel(
            "Time to first token at p95",
            "From arrival at the router, by tenant.",
            "s",
            (
                Query(
                    quantile(0.95, "inflight_time_to_first_token_seconds", "tenant", _OF_TENANT), "{{tenant}}"
                ),
            ),
            width=8,
        ),
        Panel(
            "Time between tokens at p95",
            "Between two chunks of a stream, by tenant.",
            "s",
            (Query(quantile(0.95, "inflight_inter_chunk_seconds", "tenant", _OF_TENANT), "{{tenant}}"),),
            width=8,
        ),
        Panel(
            "Wait in the router at p95",
            "The stage queue, by tenant.",
            "s",
            (
                Query(
                    quantile(0.95, "inflight_stage_seconds", "tenant", 'stage="queue",' + _OF_TENANT),
                    "{{tenant}}",
                ),
            ),
            width=8,
        ),
    ),
)

BOARD = Board(
    "inflight-tenants",
    "Inflight: tenants",
    "Who uses how much, who is refused, and who delays others.",
    (_USE, _TROUBLE, _LATENCY),
    (MODEL, TENANT),
)
