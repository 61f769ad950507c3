"""The report of one run: what it was, the verdict and the numbers people want first, then everything else."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from loadtest.report.charts import charts_of
from loadtest.report.figures import (
    TIERS,
    Figures,
    error_groups,
    figures_of,
    grouped,
    slowest,
    standings,
    verdict_of,
    warnings_of,
)
from loadtest.report.page import Cell, Html, cards, count, page, percent, plots, rate, table, time
from loadtest.report.windows import stage_means
from loadtest.results import LoadRun

COMMAND = "command"  # in what a run says about itself
_MOST_TENANTS = 30


def html_of(run: LoadRun) -> str:
    whole = figures_of(run.results, run.slo, run.duration_s)
    parts = [
        *_summary(run, whole),
        _objectives(run),
        "<h2>Plots</h2>",
        plots(charts_of(run)),
        _stages(run),
        _kinds(run),
        _groups("Tiers", "tier", grouped(run, lambda each: each.tier, TIERS)),
        _groups("Tenants", "tenant", grouped(run, lambda each: each.tenant)),
        _slowest(run),
        _errors(run),
        about(run.about),
        again(run.about),
    ]
    return page(f"Load test: {run.name}", filter(None, parts))


def _summary(run: LoadRun, whole: Figures) -> list[str]:
    is_kept, text = verdict_of(run, whole)
    kind = {True: " kept", False: " missed", None: ""}[is_kept]
    what = f"{run.began_at} · {rate(run.duration_s)} s · {count(whole.offered)} requests"
    if whole.cached_tokens:
        share = whole.cached_tokens / max(1, whole.prompt_tokens)
        what += f" · {percent(share)} of the prompts' tokens were in the prefix cache"
    return [
        f"<header><h1>Load test: {escape(run.name)}</h1>",
        f'<p class="muted">{escape(what)}</p></header>',
        f'<p class="verdict{kind}">{escape(text)}</p>',
        *(f'<p class="warning">{escape(warning)}</p>' for warning in warnings_of(run)),
        cards(
            [
                (f"{rate(whole.goodput_per_s)} /s", "goodput: good requests"),
                (f"{rate(whole.good_tokens_per_s)} /s", "tokens of good answers"),
                (f"{rate(whole.answered_per_s)} /s", "requests answered"),
                (f"{rate(whole.tokens_per_s)} /s", "tokens"),
                (count(whole.refusals), "refused"),
                (count(whole.failed), "failed"),
                (count(whole.late), "answered too late"),
                (count(whole.left), "gave up"),
            ]
        ),
        _latencies(whole),
    ]


def _latencies(whole: Figures) -> str:
    spreads = {
        "time to first token": whole.first_token_s,
        "inter-token": whole.between_tokens_s,
        "end to end": whole.ended_s,
    }
    rows = [
        [name, *(time(value) for value in (each.p50, each.p95, each.p99, each.mean, each.most))]
        for name, each in spreads.items()
    ]
    return table(["latency", "p50", "p95", "p99", "mean", "most"], rows)


def _objectives(run: LoadRun) -> str:
    used = {each.tier for each in run.results}
    found = [each for each in standings(run) if each.tier in used]
    if not found:
        return ""
    rows: list[list[Cell]] = [
        [each.tier, each.metric, time(each.objective_s), time(each.p95_s), percent(each.kept_share)]
        for each in found
    ]
    note = (
        "Met: of those measured. A request is good when its answer is complete and meets all of its tier's."
    )
    return "<h2>Objectives</h2>" + table(["tier", "metric", "objective", "p95", "met"], rows, 2, note)


def _stages(run: LoadRun) -> str:
    means = stage_means(run.samples)
    whole_s = sum(means.values())
    if not whole_s:
        return ""
    rows = [[name, time(mean_s), percent(mean_s / whole_s)] for name, mean_s in means.items()]
    note = "Mean of a request by the server's own clock, over the whole run."
    return "<h2>Stages</h2>" + table(["stage", "mean", "of it all"], rows, 1, note)


def _kinds(run: LoadRun) -> str:
    kinds = grouped(run, lambda each: each.kind)
    return _groups("Kinds of requests", "kind", kinds) if len(kinds) > 1 else ""


def _groups(title: str, heading: str, groups: Mapping[str, Figures]) -> str:
    if not groups or set(groups) == {""}:
        return ""
    headings = [heading, "offered", "good", "late", "refused", "failed", "gave up"]
    headings += ["first token p50, p95", "inter-token p50, p95", "end to end p50, p95", "tokens"]
    rows = []
    for name, each in list(groups.items())[:_MOST_TENANTS]:
        counts = [each.late, each.refusals, each.failed, each.left]
        spreads = [each.first_token_s, each.between_tokens_s, each.ended_s]
        latencies = [f"{time(spread.p50)}, {time(spread.p95)}" for spread in spreads]
        numbers = [*map(count, counts), *latencies, count(each.completion_tokens)]
        rows.append([name or "–", count(each.offered), percent(each.good_share), *numbers])
    left = len(groups) - len(rows)
    note = f"{left} more are in results.json." if left else ""
    return f"<h2>{title}</h2>" + table(headings, rows, 1, note)


def _slowest(run: LoadRun) -> str:
    rows: list[list[Cell]] = [
        [
            Html(f"<code>{escape(each.request_id or '–')}</code>"),
            each.tenant or "–",
            each.tier,
            f"{each.at_s:.2f} s",
            time(each.first_token_s),
            time(each.between_tokens_s),
            time(each.longest_gap_s or None),
            time(each.ended_s),
            count(each.prompt_tokens),
            count(each.completion_tokens),
        ]
        for each in slowest(run.results)
    ]
    if not rows:
        return ""
    headings = ["request id", "tenant", "tier", "planned at", "first token", "inter-token", "longest silence"]
    headings += ["end to end", "prompt", "answer"]
    return "<h2>Slowest requests</h2>" + table(headings, rows, 3)


def _errors(run: LoadRun) -> str:
    rows: list[list[Cell]] = [
        [
            str(each.status) if each.status else "no answer",
            Html(f'<span class="message">{escape(each.message)}</span>'),
            Html(f"<code>{escape(each.request_id or '–')}</code>"),
            count(each.count),
        ]
        for each in error_groups(run.results)
    ]
    if not rows:
        return ""
    headings = ["status", "message", "one of them", "times"]
    return "<h2>Errors and refusals</h2>" + table(headings, rows, 3)


def about(told: Mapping[str, str]) -> str:
    rows: list[list[Cell]] = [[name, value] for name, value in told.items() if name != COMMAND]
    return "<h2>Machine and versions</h2>" + table(["", ""], rows, 2) if rows else ""


def again(told: Mapping[str, str]) -> str:
    command = told.get(COMMAND)
    return f"<h2>Run it again</h2><pre>{escape(command)}</pre>" if command else ""
