"""One model: its tiers, its stages, its queue, its batches and how good its forecasts are."""

from __future__ import annotations

from deploy.monitoring.board import (
    MODEL,
    RELEASE,
    REPLICA,
    TOKENS_PER_S,
    Board,
    Panel,
    Query,
    Section,
    quantile,
    rate,
)
from deploy.monitoring.boards.model_capacity import BATCHES, FORECAST, ROOM

_OF_MODEL = 'model=~"$model"'
_OF_RELEASE = 'model=~"$model",release=~"$release"'


def _against_objective(metric: str) -> tuple[Query, ...]:
    chosen = f'{{metric="{metric}",{_OF_MODEL}}}'
    return (
        Query(f"max by (tier) (inflight_objective_measured_p95_seconds{chosen})", "{{tier}} p95"),
        Query(f"min by (tier) (inflight_objective_seconds{chosen})", "{{tier}} objective"),
    )


def _quantiles(metric: str) -> tuple[Query, ...]:
    return tuple(
        Query(quantile(share, metric, "model", _OF_RELEASE), f"{{{{model}}}} p{share * 100:g}")
        for share in (0.5, 0.95, 0.99)
    )


_TIERS = Section(
    "Do its tiers meet their objectives?",
    (
        Panel(
            "First token by tier against its objective",
            "p95 over the last 5 minutes, and the objective; tiers with an objective only.",
            "s",
            _against_objective("first_token"),
            width=8,
            no_value="no objective",
        ),
        Panel(
            "Between tokens by tier against its objective",
            "p95 over the last 5 minutes, and the objective; tiers with an objective only.",
            "s",
            _against_objective("inter_token"),
            width=8,
            no_value="no objective",
        ),
        Panel(
            "Whole answers by tier against their objective",
            "For models of fixed cost, such as embeddings: their objective is for the whole answer.",
            "s",
            _against_objective("end_to_end"),
            width=8,
            no_value="no objective",
        ),
        Panel(
            "Waiting by tier",
            "Accepted requests that wait in the router's queue.",
            "short",
            (Query("sum by (tier) (inflight_waiting_requests{" + _OF_RELEASE + "})", "{{tier}}"),),
            width=8,
        ),
        Panel(
            "At risk by tier",
            "Share of requests, over about 30 s, whose first token is predicted to be late.",
            "percentunit",
            (Query("max by (tier) (inflight_objective_risk_ratio{" + _OF_RELEASE + "})", "{{tier}}"),),
            width=8,
            largest=1.0,
        ),
        Panel(
            "Refusals by tier",
            "busy: refused at once; too_late: timed out in the queue; too_large: does not fit the cache.",
            "reqps",
            (
                Query(
                    rate("inflight_refused_requests_total", "tier, reason", _OF_MODEL),
                    "{{tier}} {{reason}}",
                ),
            ),
            width=8,
            no_value="no refusals",
        ),
        Panel(
            "Objectives missed by tier",
            "Share of requests, or tokens, that were too late, over the last 5 minutes and the last hour.",
            "percentunit",
            (
                Query(
                    "model_tier_metric:inflight_objective_missed:ratio_rate5m{" + _OF_MODEL + "}",
                    "{{model}} {{tier}} {{metric}} 5 min",
                ),
                Query(
                    "model_tier_metric:inflight_objective_missed:ratio_rate1h{" + _OF_MODEL + "}",
                    "{{model}} {{tier}} {{metric}} 1 h",
                ),
            ),
            width=24,
            largest=1.0,
            no_value="no objective, or no measurements",
        ),
    ),
)

_LATENCY = Section(
    "Slow because it waits, or slow because the model is?",
    (
        Panel(
            "Stages at p95",
            "Each stage on its own. Waiting: queue (router), preprocessing (tokenizing, Triton's queue), "
            "engine_queue. The model: prefill, decode. triton stands for those in the middle where the "
            "engine's clock is another machine's.",
            "s",
            (
                Query(
                    quantile(0.95, "inflight_stage_seconds", "stage", _OF_RELEASE),
                    "{{stage}}",
                ),
            ),
        ),
        Panel(
            "Mean stages, stacked",
            "Mean seconds of a request in each stage; together they are its whole time.",
            "s",
            (
                Query(
                    rate("inflight_stage_seconds_sum", "stage", _OF_RELEASE)
                    + " / ignoring (stage) group_left () sum(rate(inflight_request_seconds_count{"
                    + _OF_RELEASE
                    + "}[$__rate_interval]))",
                    "{{stage}}",
                ),
            ),
            kind="stacked",
        ),
        Panel(
            "Time to first token",
            "From arrival at the router.",
            "s",
            _quantiles("inflight_time_to_first_token_seconds"),
            width=8,
        ),
        Panel(
            "Time between tokens",
            "Between two chunks of a stream.",
            "s",
            _quantiles("inflight_inter_chunk_seconds"),
            width=8,
        ),
        Panel(
            "Time of a whole request",
            "From arrival to the end.",
            "s",
            _quantiles("inflight_request_seconds"),
            width=8,
        ),
    ),
)

_TRAFFIC = Section(
    "What is its load?",
    (
        Panel(
            "Requests by how they ended",
            "Accepted requests: finished, failed, cancelled by the client.",
            "reqps",
            (Query(rate("inflight_requests_ended_total", "outcome", _OF_RELEASE), "{{outcome}}"),),
            width=8,
        ),
        Panel(
            "Tokens",
            "Prompt tokens read, and answer tokens delivered, each second.",
            TOKENS_PER_S,
            (
                Query(rate("inflight_prompt_tokens_total", "model", _OF_RELEASE), "{{model}} prompts"),
                Query(rate("inflight_completion_tokens_total", "model", _OF_RELEASE), "{{model}} answers"),
            ),
            width=8,
        ),
        Panel(
            "Length of prompts and answers",
            "Mean tokens of a request.",
            "short",
            (
                Query(
                    rate("inflight_prompt_tokens_total", "model", _OF_RELEASE)
                    + " / "
                    + rate("inflight_request_seconds_count", "model", _OF_RELEASE),
                    "{{model}} prompt",
                ),
                Query(
                    rate("inflight_completion_tokens_total", "model", _OF_RELEASE)
                    + " / "
                    + rate("inflight_request_seconds_count", "model", _OF_RELEASE),
                    "{{model}} answer",
                ),
            ),
            width=8,
        ),
    ),
)

BOARD = Board(
    "inflight-model",
    "Inflight: one model",
    "Its tiers, stages, queue, batches and forecasts. Choose one model; docs/scheduling.md explains how to "
    "read it.",
    (_TIERS, _LATENCY, _TRAFFIC, ROOM, BATCHES, FORECAST),
    (MODEL, RELEASE, REPLICA),
)
