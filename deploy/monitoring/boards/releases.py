"""Releases of a model side by side: is the new one as good as the old one?"""

from __future__ import annotations

from deploy.monitoring.board import MODEL, RELEASE, TOKENS_PER_S, Board, Panel, Query, Section, quantile, rate

_OF_MODEL = 'model=~"$model"'
_OF_RELEASE = 'model=~"$model",release=~"$release"'
_NAME = "{{model}}@{{release}}"
_BY = "model, release"
_NONE_SHADOWED = "nothing is shadowed"

_SPLIT = Section(
    "How is the traffic split?",
    (
        Panel(
            "Share of the requests",
            "Share that the split sends to each release.",
            "percentunit",
            (Query("max by (model, release) (inflight_release_share{" + _OF_RELEASE + "})", _NAME),),
            kind="stacked",
            width=8,
            largest=1.0,
        ),
        Panel(
            "Requests by release",
            "Accepted requests that ended, each second.",
            "reqps",
            (Query(rate("inflight_requests_ended_total", _BY, _OF_RELEASE), _NAME),),
            width=8,
        ),
        Panel(
            "Step of a rollout",
            "The step that a canary is in, counted from 1; empty while there is no rollout.",
            "short",
            (Query("max by (model, release) (inflight_rollout_step{" + _OF_RELEASE + "})", _NAME),),
            width=4,
            no_value="no rollout",
        ),
        Panel(
            "Rollouts rolled back",
            "By their gates, in the selected time range.",
            "short",
            (
                Query(
                    "sum by (model) (increase(inflight_rollbacks_total{" + _OF_MODEL + "}[$__range]))",
                    "{{model}}",
                ),
            ),
            kind="number",
            width=4,
            steps=((0.0, "green"), (1.0, "orange")),
        ),
    ),
)

_QUALITY = Section(
    "Is it as fast, and as reliable?",
    (
        Panel(
            "Time to first token by release",
            "At p50 and p95, from arrival at the router.",
            "s",
            tuple(
                Query(
                    quantile(share, "inflight_time_to_first_token_seconds", _BY, _OF_RELEASE),
                    f"{_NAME} p{share * 100:g}",
                )
                for share in (0.5, 0.95)
            ),
        ),
        Panel(
            "Time between tokens by release",
            "At p50 and p95, between two chunks of a stream.",
            "s",
            tuple(
                Query(
                    quantile(share, "inflight_inter_chunk_seconds", _BY, _OF_RELEASE),
                    f"{_NAME} p{share * 100:g}",
                )
                for share in (0.5, 0.95)
            ),
        ),
        Panel(
            "Failures by release",
            "Accepted requests that failed, as a share of all that ended in the last 10 minutes.",
            "percentunit",
            (Query("model_release:inflight_requests_failed:ratio_rate10m{" + _OF_RELEASE + "}", _NAME),),
            width=8,
        ),
        Panel(
            "Time of a whole request by release",
            "At p95, from arrival to the end.",
            "s",
            (Query(quantile(0.95, "inflight_request_seconds", _BY, _OF_RELEASE), f"{_NAME} p95"),),
            width=8,
        ),
        Panel(
            "Length of answers by release",
            "Mean tokens of an answer: much shorter or longer answers mean a different behaviour for users.",
            "short",
            (
                Query(
                    rate("inflight_completion_tokens_total", _BY, _OF_RELEASE)
                    + " / "
                    + rate("inflight_request_seconds_count", _BY, _OF_RELEASE),
                    _NAME,
                ),
            ),
            width=8,
        ),
        Panel(
            "Tokens by release",
            "Tokens delivered each second.",
            TOKENS_PER_S,
            (Query(rate("inflight_completion_tokens_total", _BY, _OF_RELEASE), _NAME),),
            width=8,
        ),
        Panel(
            "Prefill and decode by release",
            "Mean seconds of a request in the model itself, without waiting.",
            "s",
            (
                Query(
                    rate(
                        "inflight_stage_seconds_sum",
                        "model, release, stage",
                        'stage=~"prefill|decode",' + _OF_RELEASE,
                    )
                    + " / ignoring (stage) group_left () "
                    + rate("inflight_request_seconds_count", _BY, _OF_RELEASE),
                    _NAME + " {{stage}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Replicas up by release",
            "Replicas that requests are sent to.",
            "short",
            (
                Query(
                    "sum by (model, release) (max by (model, release, replica) (inflight_replica_up{"
                    + _OF_RELEASE
                    + "}))",
                    _NAME,
                ),
            ),
            width=8,
        ),
    ),
)

_SHADOWS = Section(
    "How does a shadow answer?",
    (
        Panel(
            "Answers of shadows",
            "Compared with the original: equal, different, failed, dropped under load, alone (no original).",
            "reqps",
            (
                Query(
                    rate("inflight_shadow_answers_total", "model, release, outcome", _OF_RELEASE),
                    _NAME + " {{outcome}}",
                ),
            ),
            width=8,
            no_value=_NONE_SHADOWED,
        ),
        Panel(
            "Likeness of shadows",
            "Mean of: the common beginning of both texts as a share of the longer one, or the cosine of"
            " vectors.",
            "percentunit",
            (
                Query(
                    rate("inflight_shadow_likeness_ratio_sum", _BY, _OF_RELEASE)
                    + " / "
                    + rate("inflight_shadow_likeness_ratio_count", _BY, _OF_RELEASE),
                    _NAME,
                ),
            ),
            width=8,
            largest=1.0,
            no_value=_NONE_SHADOWED,
        ),
        Panel(
            "Time of a shadow's answer",
            "At p95, from the start of its answer to the end.",
            "s",
            (Query(quantile(0.95, "inflight_shadow_request_seconds", _BY, _OF_RELEASE), _NAME),),
            width=8,
            no_value=_NONE_SHADOWED,
        ),
    ),
)

BOARD = Board(
    "inflight-releases",
    "Inflight: releases side by side",
    "Is the new release as good as the old one? docs/releases.md.",
    (_SPLIT, _QUALITY, _SHADOWS),
    (MODEL, RELEASE),
)
