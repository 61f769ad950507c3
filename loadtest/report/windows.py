"""A run over its time, in windows of equal length."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtest.percentiles import percentile
from loadtest.report.figures import is_good
from loadtest.results import STAGES, LoadRun, RequestResult, ServerSample

Values = npt.NDArray[np.float64]
_MOST_WINDOWS, _LEAST_WINDOWS, _VALUES_IN_EACH = 48, 8, 8
_SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Windows:
    """`count` windows of `width_s`, the first from the beginning of the run."""

    width_s: float
    count: int

    @classmethod
    def of(cls, duration_s: float, values: int) -> Windows:
        """Not more than can be told apart, some values in each, and round: 1, 2 or 5 of something."""
        most = min(_MOST_WINDOWS, max(_LEAST_WINDOWS, values // _VALUES_IN_EACH))
        least_s = max(duration_s, 1e-3) / most
        unit_s = 10.0 ** math.floor(math.log10(least_s))
        width_s = next(step * unit_s for step in (1, 2, 5, 10) if step * unit_s >= least_s * (1 - 1e-9))
        return cls(width_s, max(1, math.ceil(duration_s / width_s - 1e-9)))

    @property
    def middles_s(self) -> Values:
        return (np.arange(self.count) + 0.5) * self.width_s

    def place(self, at_s: float) -> int:
        return min(self.count - 1, max(0, int(at_s / self.width_s)))

    def percentiles(
        self, results: Sequence[RequestResult], measure: Callable[[RequestResult], float | None]
    ) -> dict[float, Values]:
        """Of each window, by planned moments; nan where there was none."""
        seen: dict[int, list[float]] = defaultdict(list)
        for each in results:
            if (value := measure(each)) is not None:
                seen[self.place(each.at_s)].append(value)
        ordered = {place: sorted(values) for place, values in seen.items()}
        return {
            share: np.array([percentile(ordered.get(place, []), share) for place in range(self.count)])
            for share in _SHARES
        }

    def per_s(self, moments_s: Sequence[float]) -> Values:
        counts = np.zeros(self.count)
        for at_s in moments_s:
            counts[self.place(at_s)] += 1
        return counts / self.width_s

    def tokens_per_s(self, results: Sequence[RequestResult]) -> Values:
        """An answer's tokens are spread evenly from its first to its last; who gave up did so at the end."""
        tokens = np.zeros(self.count)
        for each in results:
            if each.completion_tokens and each.first_token_s is not None:
                begin_s = each.at_s + each.first_token_s
                end_s = each.at_s + (each.ended_s or each.first_token_s)
                if each.has_left:
                    end_s = self.count * self.width_s
                end_s = max(begin_s, end_s)
                self._spread(tokens, begin_s, end_s, each.completion_tokens)
        return tokens / self.width_s

    def _spread(self, tokens: Values, begin_s: float, end_s: float, count: int) -> None:
        first, last = self.place(begin_s), self.place(end_s)
        if first == last or end_s <= begin_s:
            tokens[last] += count
            return
        for place in range(first, last + 1):
            from_s = begin_s if place == first else place * self.width_s
            to_s = end_s if place == last else (place + 1) * self.width_s
            tokens[place] += count * (to_s - from_s) / (end_s - begin_s)

    def gauge(
        self, samples: Sequence[ServerSample], measure: Callable[[ServerSample], float | None]
    ) -> Values:
        """The mean of each window, and between them a line; nan before the first and after the last."""
        seen: dict[int, list[float]] = defaultdict(list)
        for each in samples:
            if 0 <= each.at_s <= self.count * self.width_s and (value := measure(each)) is not None:
                seen[self.place(each.at_s)].append(value)
        if not seen:
            return np.full(self.count, np.nan)
        places = sorted(seen)
        means = [sum(seen[place]) / len(seen[place]) for place in places]
        return np.interp(np.arange(self.count), places, means, left=np.nan, right=np.nan)

    def stages(self, samples: Sequence[ServerSample]) -> dict[str, Values]:
        """Mean seconds of a request in each stage, of the requests that ended in each window."""
        names = stage_names(samples)
        found = {name: np.full(self.count, np.nan) for name in names}
        before = samples[0] if samples else None
        for place in range(self.count):
            mine = [each for each in samples if self.place(each.at_s) == place]
            if before is None or not mine:
                continue
            requests = mine[-1].stage_requests - before.stage_requests
            for name in names:
                spent_s = mine[-1].stage_seconds.get(name, 0.0) - before.stage_seconds.get(name, 0.0)
                found[name][place] = max(0.0, spent_s) / requests if requests > 0 else 0.0
            before = mine[-1]
        return found


def stage_names(samples: Sequence[ServerSample]) -> list[str]:
    """In the order of a request's life; the server tells of each when it has first seen it."""
    found = dict.fromkeys(name for each in samples for name in each.stage_seconds)
    return sorted(found, key=lambda name: STAGES.index(name) if name in STAGES else len(STAGES))


def stage_means(samples: Sequence[ServerSample]) -> dict[str, float]:
    """Over the whole run: seconds of a request in each stage."""
    if len(samples) < 2:
        return {}
    first, last = samples[0], samples[-1]
    requests = last.stage_requests - first.stage_requests
    if requests <= 0:
        return {}
    return {
        name: max(0.0, last.stage_seconds.get(name, 0.0) - first.stage_seconds.get(name, 0.0)) / requests
        for name in stage_names(samples)
    }


def ends_s(run: LoadRun) -> tuple[list[float], list[float]]:
    """Moments at which requests were answered, and those of the good ones."""
    ended = [each for each in run.results if each.is_answered and each.ended_s is not None]
    answered = [each.at_s + (each.ended_s or 0.0) for each in ended]
    good = [each.at_s + (each.ended_s or 0.0) for each in ended if is_good(each, run.slo)]
    return answered, good
