"""Two runs side by side: what differs, and what is no more than noise.

Requests that come close to one another share their fate, so what is drawn again and again to see how far a
figure would move is not single requests but stretches of the run (a block bootstrap). Where both runs had the
same arrivals the same stretches are drawn of both. It tells the noise within these runs; what differs from
one start of a server to the next it cannot know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from loadtest.report.figures import Figures, figures_of, is_good
from loadtest.report.windows import Values
from loadtest.results import LoadRun, RequestResult

CONFIDENCE = 0.99  # there are many rows, and each may be wrong
LEAST_REQUESTS = 40
_BLOCKS, _DRAWS = 24, 800
_GAP_BINS_PER_E = 50

BETTER, WORSE, NOISE, TOO_FEW = "better", "worse", "within noise", "too few to tell"


@dataclass(frozen=True, slots=True)
class Difference:
    """`low` to `high` is where the difference (second less first) lies; None where it cannot be told."""

    metric: str
    unit: str
    first: float | None
    second: float | None
    low: float | None
    high: float | None
    verdict: str

    @property
    def change(self) -> float | None:
        if self.first is None or self.second is None or self.first == 0:
            return None
        return self.second / self.first - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    rows: list[Difference]
    verdict: str
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        return {"version": 1, "confidence": CONFIDENCE, **asdict(self)}


@dataclass(frozen=True)
class _Metric:
    name: str
    unit: str
    of_figures: Callable[[Figures], float | None]
    of_draws: Callable[[_Drawn], Values | None]
    more_is_better: bool = False


def comparison_of(first: LoadRun, second: LoadRun) -> Comparison:
    figures = [figures_of(run.results, run.slo, run.duration_s) for run in (first, second)]
    weights = _weights(first, second)
    drawn = [_Drawn(run, mine) for run, mine in zip((first, second), weights, strict=True)]
    enough = min(each.offered for each in figures) >= LEAST_REQUESTS
    rows = []
    for metric in _metrics():
        values = [metric.of_figures(each) for each in figures]
        interval = _interval([metric.of_draws(each) for each in drawn]) if enough else None
        low, high = interval or (None, None)
        verdict = _verdict(low, high, metric.more_is_better)
        rows.append(Difference(metric.name, metric.unit, values[0], values[1], low, high, verdict))
    return Comparison(rows, _in_words(rows), _unlike(first, second, figures))


def _interval(draws: Sequence[Values | None]) -> tuple[float, float] | None:
    first, second = draws
    if first is None or second is None:
        return None
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(second - first, [tail, 100 - tail])
    return float(low), float(high)


def _verdict(low: float | None, high: float | None, more_is_better: bool) -> str:
    if low is None or high is None:
        return TOO_FEW
    if low <= 0 <= high:
        return NOISE
    return BETTER if (low > 0) == more_is_better else WORSE


def _in_words(rows: Sequence[Difference]) -> str:
    found = {
        verdict: [row.metric for row in rows if row.verdict == verdict]
        for verdict in (BETTER, WORSE, NOISE, TOO_FEW)
    }
    if len(found[TOO_FEW]) == len(rows):
        return f"No conclusion is possible: at least one run has fewer than {LEAST_REQUESTS} requests."
    if not found[BETTER] and not found[WORSE]:
        return "No difference beyond noise."
    parts = [f"{verdict} in {', '.join(found[verdict])}" for verdict in (BETTER, WORSE) if found[verdict]]
    rest = "; the rest is within noise" if found[NOISE] else ""
    return f"The second run is {'; '.join(parts)}{rest}."


def _unlike(first: LoadRun, second: LoadRun, figures: Sequence[Figures]) -> list[str]:
    """Why they may not be comparable at all."""
    found = []
    if first.slo != second.slo:
        found.append("The runs had different objectives: their goodput cannot be compared.")
    offered = [
        each.offered / max(run.duration_s, 1e-9) for each, run in zip(figures, (first, second), strict=True)
    ]
    if min(offered) > 0 and max(offered) / min(offered) > 1.1:
        found.append(
            f"The load differs: {offered[0]:.3g} and {offered[1]:.3g} requests were offered a second."
        )
    for name, run in (("first", first), ("second", second)):
        sent = sum(each.attempt == 0 for each in run.results)
        if run.planned is not None and sent < run.planned:
            found.append(f"The {name} run was interrupted: {sent:,} of {run.planned:,} requests were sent.")
    return found


def _weights(first: LoadRun, second: LoadRun) -> tuple[Values, Values]:
    """How often each block was drawn, in each draw."""
    chance = np.random.default_rng(0)
    even = np.full(_BLOCKS, 1 / _BLOCKS)
    mine = chance.multinomial(_BLOCKS, even, _DRAWS).astype(float)
    if _same_arrivals(first, second):
        return mine, mine
    return mine, chance.multinomial(_BLOCKS, even, _DRAWS).astype(float)


def _same_arrivals(first: LoadRun, second: LoadRun) -> bool:
    """The same plan, sent twice."""
    plans = [sorted(each.at_s for each in run.results if each.attempt == 0) for run in (first, second)]
    return len(plans[0]) == len(plans[1]) and np.allclose(plans[0], plans[1], atol=1e-3)


class _Drawn:
    """The figures of one run in every draw."""

    def __init__(self, run: LoadRun, weights: Values) -> None:
        self._run = run
        self._weights = weights
        self._last_s = max((each.at_s for each in run.results), default=0.0)

    def percentile(self, measure: Callable[[RequestResult], float | None], share: float) -> Values | None:
        known = [
            (value, self._block(each)) for each in self._run.results if (value := measure(each)) is not None
        ]
        if not known:
            return None
        known.sort()
        values = np.array([value for value, _ in known])
        places = np.array([block for _, block in known])
        return _weighted(values, self._weights[:, places], share)

    def gap_percentile(self, share: float) -> Values | None:
        """Of millions of tokens, in bins."""
        if not self._gap_counts:
            return None
        ordered = sorted(self._gap_counts)
        values = np.exp(np.array(ordered) / _GAP_BINS_PER_E)
        counts = np.array([self._gap_counts[place] for place in ordered])
        return _weighted(values, self._weights @ counts.T, share)

    @cached_property
    def _gap_counts(self) -> dict[int, Values]:
        """By bin: how many in each block."""
        counts: dict[int, Values] = {}
        for each in self._run.results:
            if not each.gaps_s:
                continue
            bins = np.round(_GAP_BINS_PER_E * np.log(np.maximum(each.gaps_s, 1e-6))).astype(int)
            block = self._block(each)
            for place, count in zip(*np.unique(bins, return_counts=True), strict=True):
                counts.setdefault(int(place), np.zeros(_BLOCKS))[block] += count
        return counts

    def per_s(self, amount: Callable[[RequestResult], float]) -> Values:
        return self._sums(amount) / max(self._run.duration_s, 1e-9)

    def share(self, amount: Callable[[RequestResult], float]) -> Values:
        shares: Values = self._sums(amount) / np.maximum(1.0, self._sums(lambda each: each.attempt == 0))
        return shares

    def is_good(self, result: RequestResult) -> bool:
        return is_good(result, self._run.slo)

    def _sums(self, amount: Callable[[RequestResult], float]) -> Values:
        blocks = np.zeros(_BLOCKS)
        for each in self._run.results:
            blocks[self._block(each)] += amount(each)
        sums: Values = self._weights @ blocks
        return sums

    def _block(self, result: RequestResult) -> int:
        return min(_BLOCKS - 1, int(_BLOCKS * result.at_s / self._last_s)) if self._last_s > 0 else 0


def _weighted(ordered: Values, weights: Values, share: float) -> Values:
    """The nearest-rank percentile of each draw; a row of `weights` for each."""
    found = []
    for row in weights:
        above = np.cumsum(row)
        found.append(ordered[min(len(ordered) - 1, int(np.searchsorted(above, share * above[-1])))])
    return np.array(found)


def _metrics() -> list[_Metric]:
    found = [
        _Metric("goodput", "/s", lambda one: one.goodput_per_s, lambda all_: all_.per_s(all_.is_good), True),
        _Metric("good", "share", lambda one: one.good_share, lambda all_: all_.share(all_.is_good), True),
        _Metric(
            "answered",
            "/s",
            lambda one: one.answered_per_s,
            lambda all_: all_.per_s(lambda each: each.is_answered),
            True,
        ),
        _Metric(
            "tokens",
            "/s",
            lambda one: one.tokens_per_s,
            lambda all_: all_.per_s(lambda each: each.completion_tokens),
            True,
        ),
        _Metric(
            "refused",
            "share",
            lambda one: one.refusals / max(1, one.offered),
            lambda all_: all_.share(lambda each: each.is_refused),
        ),
        _Metric(
            "failed",
            "share",
            lambda one: one.failed / max(1, one.offered),
            lambda all_: all_.share(lambda each: each.has_failed),
        ),
    ]
    by_share = [_latencies(label, share) for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))]
    return [*found, *(each for kind in zip(*by_share, strict=True) for each in kind)]


def _latencies(label: str, share: float) -> list[_Metric]:
    def ended_s(each: RequestResult) -> float | None:
        return each.ended_s if each.is_answered else None

    return [
        _Metric(
            f"first token {label}",
            "s",
            lambda one: getattr(one.first_token_s, label),
            lambda all_: all_.percentile(lambda each: each.first_token_s, share),
        ),
        _Metric(
            f"inter-token {label}",
            "s",
            lambda one: getattr(one.between_tokens_s, label),
            lambda all_: all_.gap_percentile(share),
        ),
        _Metric(
            f"end to end {label}",
            "s",
            lambda one: getattr(one.ended_s, label),
            lambda all_: all_.percentile(ended_s, share),
        ),
    ]
