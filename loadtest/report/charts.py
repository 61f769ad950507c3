"""Which plots a report has, and what is in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.report.distributions import Sampled, distribution
from loadtest.report.figures import TIERS
from loadtest.report.inline_svg import HIGH, INK, LOW, MIDDLE, SERIES
from loadtest.report.plots import Line, Panel, bars, over_time, stacked
from loadtest.report.windows import Values, Windows, ends_s
from loadtest.results import LoadRun, RequestResult, ServerSample

NO_SAMPLES = "No metrics of the server were collected."
_MOST_TENANTS, _MOST_LAYERS = 14, 6
_TIER_COLOURS = dict(zip(TIERS, SERIES, strict=False))
Measure = Callable[[RequestResult], float | None]


@dataclass(frozen=True)
class Chart:
    """Without a drawing `note` says why there is none."""

    name: str
    title: str
    note: str
    svg: str = ""


def first_token_s(result: RequestResult) -> float | None:
    return result.first_token_s


def ended_s(result: RequestResult) -> float | None:
    return result.ended_s if result.is_answered else None


def charts_of(run: LoadRun) -> list[Chart]:
    windows = Windows.of(run.duration_s, len(run.results))
    moments = server_windows(run)
    return [
        _latency(run, windows, "first-token", "Time to first token", "first_token_s", first_token_s),
        _latency(run, windows, "end-to-end", "End to end", "ended_s", ended_s),
        _first_tokens(run),
        _between_tokens(run),
        _throughput(run, windows),
        _queue(run, moments),
        _batch(run, moments),
        _kv(run, moments),
        _tenants(run),
        _tenants_over_time(run, windows),
        _stages(run, windows),
    ]


def server_windows(run: LoadRun) -> Windows:
    """A sample is enough for a window."""
    return Windows.of(run.duration_s, 8 * len(run.samples))


def goals_of(run: LoadRun, field: str, factor: float = 1.0) -> dict[str, float]:
    """Objectives by the names of their tiers; of tiers that nobody used, none."""
    used = {each.tier for each in run.results}
    found = {tier: getattr(run.slo[tier], field) for tier in TIERS if tier in run.slo and tier in used}
    goals: dict[str, float] = {}
    by_value: dict[float, list[str]] = {}
    for tier, value_s in found.items():
        if value_s is not None:
            by_value.setdefault(value_s, []).append(tier)
    for value_s, tiers in by_value.items():
        goals["objective" if len(by_value) == 1 else f"{', '.join(tiers)}"] = value_s * factor
    return goals


def _latency(run: LoadRun, windows: Windows, name: str, title: str, field: str, measure: Measure) -> Chart:
    name = f"{name}-over-time"
    note = f"Percentiles of each {windows.width_s:g} s, by the planned moment of sending."
    found = windows.percentiles(run.results, measure)
    if not any(np.isfinite(values).any() for values in found.values()):
        return Chart(name, f"{title} over time", "Nothing was measured.")
    in_ms = float(np.nanmax(found[0.99])) < 2
    factor, unit = (1000.0, "ms") if in_ms else (1.0, "s")
    colours = {0.5: LOW, 0.95: MIDDLE, 0.99: HIGH}
    lines = [Line(f"p{100 * share:g}", factor * found[share], colours[share]) for share in (0.5, 0.95, 0.99)]
    panel = Panel(unit, lines, goals_of(run, field, factor))
    return Chart(name, f"{title} over time", note, over_time(name, title, windows.middles_s, [panel]))


def _by_tier(
    run: LoadRun, values_of: Callable[[RequestResult], Sequence[float]], factor: float
) -> list[Sampled]:
    found: dict[str, list[float]] = {}
    for each in run.results:
        found.setdefault(each.tier, []).extend(values_of(each))
    kept = {tier: values for tier, values in found.items() if values}
    order = sorted(kept, key=lambda tier: (*TIERS, tier).index(tier))
    extra = iter(SERIES[len(TIERS) :])
    return [
        Sampled(tier, factor * np.array(kept[tier]), _TIER_COLOURS.get(tier) or next(extra, INK))
        for tier in order
    ]


def _first_tokens(run: LoadRun) -> Chart:
    name, title = "first-token-distribution", "Distribution of the time to first token"
    groups = _by_tier(run, lambda each: [] if each.first_token_s is None else [each.first_token_s], 1000)
    if not groups:
        return Chart(name, title, "Nothing was measured.")
    goals = goals_of(run, "first_token_s", 1000)
    svg = distribution(name, title, groups, "ms to the first token", goals, "of requests")
    return Chart(name, title, "From the planned moment of sending. Objectives are dashed.", svg)


def _between_tokens(run: LoadRun) -> Chart:
    name, title = "inter-token-distribution", "Distribution of the inter-token latency"
    groups = _by_tier(run, lambda each: each.gaps_s, 1000)
    if not groups:
        return Chart(name, title, "Nothing was measured.")
    goals = goals_of(run, "between_tokens_s", 1000)
    svg = distribution(name, title, groups, "ms from token to token", goals, "of tokens")
    note = "Of tokens; objectives (dashed) are for the mean over an answer."
    return Chart(name, title, note, svg)


def _throughput(run: LoadRun, windows: Windows) -> Chart:
    name, title = "throughput", "Throughput"
    if not run.results:
        return Chart(name, title, "No requests were sent.")
    offered = windows.per_s([each.at_s for each in run.results if each.attempt == 0])
    answered, good = (windows.per_s(moments_s) for moments_s in ends_s(run))
    requests = [Line("offered", offered, INK, is_dashed=True), Line("answered", answered, SERIES[0])]
    if run.slo:
        requests.append(Line("good", good, SERIES[2]))
    tokens = [Line("tokens", windows.tokens_per_s(run.results), SERIES[1])]
    panels = [Panel("requests/s", requests, {}), Panel("tokens/s", tokens, {})]
    note = "Good requests met every objective of their tier." if run.slo else "No objectives were given."
    return Chart(name, title, note, over_time(name, title, windows.middles_s, panels))


def _of_server(
    run: LoadRun,
    windows: Windows,
    name: str,
    title: str,
    unit: str,
    lines: Mapping[str, Callable[[ServerSample], float | None]],
    note: str,
) -> Chart:
    colours = {"limit": INK}
    drawn = [
        Line(label, values, colours.get(label, SERIES[0]), label == "limit")
        for label, measure in lines.items()
        if np.isfinite(values := windows.gauge(run.samples, measure)).any()
    ]
    if not drawn:
        return Chart(name, title, NO_SAMPLES)
    return Chart(name, title, note, over_time(name, title, windows.middles_s, [Panel(unit, drawn, {})]))


def _queue(run: LoadRun, windows: Windows) -> Chart:
    note = "Requests that wait in the router's queue."
    lines = {"waiting": lambda each: each.waiting}
    return _of_server(run, windows, "queue", "Queue", "requests", lines, note)


def _batch(run: LoadRun, windows: Windows) -> Chart:
    note = "Requests that are in the engine's batch, of those that fit."
    lines: dict[str, Callable[[ServerSample], float | None]] = {
        "running": lambda each: each.running,
        "limit": lambda each: each.batch_limit,
    }
    return _of_server(run, windows, "batch", "Batch occupancy", "requests", lines, note)


def _kv(run: LoadRun, windows: Windows) -> Chart:
    lines = {"used": lambda each: None if each.kv_used_ratio is None else 100 * each.kv_used_ratio}
    return _of_server(run, windows, "kv", "KV cache", "% in use", lines, "Of the engine's blocks.")


def _tokens(run: LoadRun) -> Counter[str]:
    tokens: Counter[str] = Counter()
    for each in run.results:
        tokens[each.tenant] += each.completion_tokens
    return tokens


def tokens_by_tenant(run: LoadRun) -> dict[str, float]:
    """What clients saw; where they do not say who they are, what the server counted."""
    if any(each.tenant for each in run.results) or not run.samples:
        seen = {name or "—": float(tokens) for name, tokens in _tokens(run).items()}
    else:
        first, last = run.samples[0].tokens_by_tenant, run.samples[-1].tokens_by_tenant
        seen = {name or "—": value - first.get(name, 0.0) for name, value in last.items()}
    ordered = sorted(seen, key=lambda name: -seen[name])
    return {name: seen[name] for name in ordered if seen[name] > 0}


def with_others(values: Mapping[str, float], most: int) -> dict[str, float]:
    if len(values) <= most:
        return dict(values)
    kept = dict(list(values.items())[: most - 1])
    return {**kept, f"{len(values) - len(kept)} others": sum(values.values()) - sum(kept.values())}


def _tenants(run: LoadRun) -> Chart:
    name, title = "tenants", "Tokens per tenant"
    found = with_others(tokens_by_tenant(run), _MOST_TENANTS)
    if not found:
        return Chart(name, title, "No tokens were received.")
    svg = bars(name, title, list(found), {"tokens": list(found.values())}, "tokens of answers")
    return Chart(name, title, "Of all answers, whole or not.", svg)


def _tenants_over_time(run: LoadRun, windows: Windows) -> Chart:
    name, title = "tenants-over-time", "Tokens per tenant over time"
    names = [tenant for tenant, tokens in _tokens(run).most_common() if tokens]
    if not names:
        return Chart(name, title, "No tokens were received.")
    own = names[: _MOST_LAYERS - (len(names) > _MOST_LAYERS)]
    others = set(names) - set(own)
    layers: dict[str, Values] = {
        tenant or "—": windows.tokens_per_s([each for each in run.results if each.tenant == tenant])
        for tenant in own
    }
    if others:
        rest = [each for each in run.results if each.tenant in others]
        layers[f"{len(others)} others"] = windows.tokens_per_s(rest)
    return Chart(name, title, "Stacked.", stacked(name, title, windows.middles_s, layers, "tokens/s"))


def _stages(run: LoadRun, windows: Windows) -> Chart:
    name, title = "stages", "Where the time went"
    layers = windows.stages(run.samples) if len(run.samples) > 1 else {}
    if not layers:
        return Chart(name, title, NO_SAMPLES)
    in_ms = float(np.nan_to_num(np.array(list(layers.values()))).sum(axis=0).max()) < 2
    scaled = {stage: (1000 if in_ms else 1) * values for stage, values in layers.items()}
    svg = stacked(name, title, windows.middles_s, scaled, "ms a request" if in_ms else "s a request")
    return Chart(name, title, "Mean of the requests that ended then, by the server's own clock.", svg)
