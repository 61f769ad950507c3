"""The plots of two runs over one another: the first is always of one colour, the second of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from loadtest.report.charts import (
    NO_SAMPLES,
    Chart,
    Measure,
    ended_s,
    first_token_s,
    goals_of,
    server_windows,
    tokens_by_tenant,
)
from loadtest.report.distributions import Sampled, distribution
from loadtest.report.inline_svg import SERIES
from loadtest.report.plots import Line, Panel, bars, over_time, stacked_bars
from loadtest.report.windows import Values, Windows, ends_s, stage_means
from loadtest.results import LoadRun, RequestResult, ServerSample

_MOST_TENANTS = 10
Pair = Sequence[tuple[str, LoadRun]]


def compared_charts(first: LoadRun, second: LoadRun) -> list[Chart]:
    pair = (("first", first), ("second", second))
    longest = max(first, second, key=lambda run: run.duration_s)
    windows = Windows.of(longest.duration_s, min(len(first.results), len(second.results)))
    moments = server_windows(longest)
    return [
        _p95(pair, windows, "first-token-over-time", "Time to first token, p95 over time", first_token_s),
        _p95(pair, windows, "end-to-end-over-time", "End to end, p95 over time", ended_s),
        _distribution(
            pair,
            "first-token-distribution",
            "Distribution of the time to first token",
            _firsts,
            "first_token_s",
        ),
        _distribution(
            pair,
            "inter-token-distribution",
            "Distribution of the inter-token latency",
            lambda each: each.gaps_s,
            "between_tokens_s",
        ),
        _throughput(pair, windows),
        _server(pair, moments, "queue", "Queue", "requests waiting", lambda each: each.waiting),
        _server(pair, moments, "batch", "Batch occupancy", "requests running", lambda each: each.running),
        _server(pair, moments, "kv", "KV cache", "% in use", _kv_percent),
        _tenants(pair),
        _stages(pair),
    ]


def _firsts(result: RequestResult) -> Sequence[float]:
    return [] if result.first_token_s is None else [result.first_token_s]


def _kv_percent(sample: ServerSample) -> float | None:
    return None if sample.kv_used_ratio is None else 100 * sample.kv_used_ratio


def _lines(pair: Pair, values_of: Callable[[LoadRun], Values]) -> list[Line]:
    drawn = [(name, values_of(run), colour) for (name, run), colour in zip(pair, SERIES, strict=False)]
    return [Line(name, values, colour) for name, values, colour in drawn if np.isfinite(values).any()]


def _p95(pair: Pair, windows: Windows, name: str, title: str, measure: Measure) -> Chart:
    lines = _lines(pair, lambda run: windows.percentiles(run.results, measure)[0.95])
    if not lines:
        return Chart(name, title, "Nothing was measured.")
    in_ms = max(float(np.nanmax(line.values)) for line in lines) < 2
    scaled = [replace(line, values=1000 * line.values) for line in lines] if in_ms else lines
    svg = over_time(name, title, windows.middles_s, [Panel("ms" if in_ms else "s", scaled, {})])
    return Chart(name, title, f"Of each {windows.width_s:g} s, by the planned moment of sending.", svg)


def _distribution(
    pair: Pair, name: str, title: str, values_of: Callable[[RequestResult], Sequence[float]], field: str
) -> Chart:
    groups = []
    for (label, run), colour in zip(pair, SERIES, strict=False):
        values = np.array([value for each in run.results for value in values_of(each)], dtype=float)
        if values.size:
            groups.append(Sampled(label, 1000.0 * values, colour))
    if not groups:
        return Chart(name, title, "Nothing was measured.")
    goals = goals_of(pair[1][1], field, 1000)
    across = "of tokens" if field == "between_tokens_s" else "of requests"
    return Chart(name, title, "All tiers together.", distribution(name, title, groups, "ms", goals, across))


def _throughput(pair: Pair, windows: Windows) -> Chart:
    name, title = "throughput", "Throughput"
    answered = _lines(pair, lambda run: windows.per_s(ends_s(run)[0]))
    tokens = _lines(pair, lambda run: windows.tokens_per_s(run.results))
    panels = [Panel("answered/s", answered, {}), Panel("tokens/s", tokens, {})]
    return Chart(
        name, title, "Requests answered, and tokens.", over_time(name, title, windows.middles_s, panels)
    )


def _server(
    pair: Pair,
    windows: Windows,
    name: str,
    title: str,
    unit: str,
    measure: Callable[[ServerSample], float | None],
) -> Chart:
    lines = _lines(pair, lambda run: windows.gauge(run.samples, measure))
    if not lines:
        return Chart(name, title, NO_SAMPLES)
    return Chart(name, title, "", over_time(name, title, windows.middles_s, [Panel(unit, lines, {})]))


def _tenants(pair: Pair) -> Chart:
    name, title = "tenants", "Tokens per tenant"
    found = {label: tokens_by_tenant(run) for label, run in pair}
    sums: dict[str, float] = {}
    for values in found.values():
        for tenant, tokens in values.items():
            sums[tenant] = sums.get(tenant, 0.0) + tokens
    names = sorted(sums, key=lambda tenant: -sums[tenant])[:_MOST_TENANTS]
    if not names:
        return Chart(name, title, "No tokens were received.")
    series = {label: [values.get(tenant, 0.0) for tenant in names] for label, values in found.items()}
    note = (
        f"The {len(names)} with most of them." if len(sums) > len(names) else "Of all answers, whole or not."
    )
    return Chart(name, title, note, bars(name, title, names, series, "tokens of answers"))


def _stages(pair: Pair) -> Chart:
    name, title = "stages", "Where the time went"
    found = {label: stage_means(run.samples) for label, run in pair}
    if not any(found.values()):
        return Chart(name, title, NO_SAMPLES)
    in_ms = {label: {stage: 1000 * value for stage, value in each.items()} for label, each in found.items()}
    svg = stacked_bars(name, title, in_ms, "ms a request")
    return Chart(name, title, "Mean of a request by the server's own clock.", svg)
