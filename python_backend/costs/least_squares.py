"""A sum of costs, each so much for a unit of something, learned one measurement after the other.

Recursive least squares with four changes. It judges by relative errors, so that a long step does not count
for more than a short one, and one that something else held up for hardly anything. Residuals far beyond the
usual are clipped; the usual is wider where little is known yet. It forgets only what new measurements replace
(Kulhavy's directional forgetting): while an engine does the same for hours, nothing is lost of what other
work costs, and nothing grows without bound. And when all that comes is slower, or faster, than predicted, the
machine has changed: then all coefficients are open to change again, most of all together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from operator import mul

FORGETTING = 0.995
_CLIP = 3.0  # times the usual residual
_RATE = 0.05  # of the averages
_FIRST_RESIDUAL = 0.1
_LARGEST_RESIDUAL = 1.0  # what one measurement is taken for in the averages
_DRIFT = 0.1  # chance does not make the mean of the latest deviations as large as that
_SETTLED_SAMPLES = 100  # before, deviations tell of what is not known yet
_PRIOR = 1000.0  # how little is known at first: variance of a coefficient, in terms of a measurement
# What is recalled counts as much as so many measurements; what was small may be more by now.
_RECALLED_WEIGHT = 30.0
_LEAST_RECALLED = 0.02
_LEAST_VARIANCE = 1e-12  # of that: rounding leaves a variance positive


class LeastSquares:
    """`scales` is the usual size of each input, so that the coefficients are of one size inside."""

    def __init__(self, scales: Sequence[float], forgetting: float = FORGETTING) -> None:
        self.samples = 0
        self._scales = tuple(scales)
        self._forgetting = forgetting
        self._of_scaled = [0.0] * len(self._scales)
        self._variances: list[list[float]] = []
        self._most_variance = 0.0
        self._residual = _FIRST_RESIDUAL
        self._drift = 0.0

    @property
    def coefficients(self) -> tuple[float, ...]:
        """What one unit of each input costs; never negative."""
        return tuple(value / scale for value, scale in zip(self._of_scaled, self._scales, strict=True))

    @property
    def residual(self) -> float:
        """The usual relative deviation of one measurement, apart from what is not known yet."""
        return self._residual

    def recall(self, coefficients: Sequence[float], samples: int) -> None:
        """Begins with what was learned before: believed at once, and left soon where it is wrong."""
        self._of_scaled = [value * scale for value, scale in zip(coefficients, self._scales, strict=True)]
        usual = sum(self._of_scaled) or 1.0
        self._most_variance = _PRIOR * usual * usual
        places = range(len(self._scales))
        sizes = [max(value, _LEAST_RECALLED * usual) for value in self._of_scaled]
        self._variances = [[sizes[i] ** 2 / _RECALLED_WEIGHT * (i == j) for j in places] for i in places]
        self.samples = samples

    def predict(self, inputs: Sequence[float]) -> float:
        return sum(
            value * amount / scale
            for value, amount, scale in zip(self._of_scaled, inputs, self._scales, strict=True)
        )

    def observe(self, inputs: Sequence[float], took: float, weight: float = 1.0) -> None:
        """Learns from one measurement, or from the mean of several (`weight`: of how many)."""
        if not self._variances:
            self._begin(took)
        self._most_variance = max(self._most_variance, _PRIOR * took * took)
        root = sqrt(weight)
        unit = root / took
        row = [amount / scale * unit for amount, scale in zip(inputs, self._scales, strict=True)]
        gains = [sum(map(mul, line, row)) for line in self._variances]
        spread = sum(map(mul, row, gains))  # of the prediction, in terms of the noise
        if spread > 0.0:
            deviation = root - sum(map(mul, row, self._of_scaled))
            trust = self._trust(deviation, spread)
            step = trust * deviation / (1.0 + trust * spread)
            self._of_scaled = [
                value + gain * step for value, gain in zip(self._of_scaled, gains, strict=True)
            ]
            self._narrow(gains, spread, trust)
            self._keep_from_below_zero()
            self._follow_drift()
        self.samples += 1

    def _begin(self, took: float) -> None:
        places = range(len(self._scales))
        self._most_variance = _PRIOR * took * took
        self._variances = [[self._most_variance * (i == j) for j in places] for i in places]

    def _trust(self, deviation: float, spread: float) -> float:
        """1 as far as noise and what is not known yet explain the deviation, and less in proportion beyond.

        That is the clipping: whatever a measurement says, it pulls no harder than one at the bound.
        """
        width = sqrt(1.0 + spread)
        most = _CLIP * self._residual * width
        usual = max(-_LARGEST_RESIDUAL, min(_LARGEST_RESIDUAL, deviation / width))
        self._residual += _RATE * (abs(usual) - self._residual)
        self._drift += _RATE * (usual - self._drift)
        return most / abs(deviation) if abs(deviation) > most else 1.0

    def _narrow(self, gains: list[float], spread: float, trust: float) -> None:
        """Along the measurement, variances shrink by what it tells and grow by what is forgotten for it."""
        kept = self._forgetting
        told = trust * spread
        factor = trust * (kept - (1.0 - kept) / told) / (kept * (1.0 + told))
        root = sqrt(abs(factor))
        self._add([root * gain for gain in gains], -1.0 if factor > 0.0 else 1.0)

    def _follow_drift(self) -> None:
        if abs(self._drift) > _DRIFT and self.samples >= _SETTLED_SAMPLES:
            wider = 1.0 + self._drift * self._drift
            self._variances = [[value * wider for value in line] for line in self._variances]
            self._add([self._drift * value for value in self._of_scaled], 1.0)

    def _add(self, values: list[float], sign: float) -> None:
        """Adds the square of a vector, or takes it off, and keeps the variances within their bounds."""
        most, least = self._most_variance, _LEAST_VARIANCE * self._most_variance
        self._variances = lines = [
            [value + sign * by * other for value, other in zip(line, values, strict=True)]
            for line, by in zip(self._variances, values, strict=True)
        ]
        for i, line in enumerate(lines):
            if not least <= line[i] <= most:
                self._bound(i, least, most)

    def _bound(self, i: int, least: float, most: float) -> None:
        """A variance that is too large takes what it shares with the others down with it."""
        line = self._variances[i]
        if line[i] < least:
            line[i] = least
            return
        shrink = sqrt(most / line[i])
        line[:] = [value * shrink for value in line]
        for other in self._variances:
            other[i] *= shrink

    def _keep_from_below_zero(self) -> None:
        """Where coefficients would be negative, the others become the best that there are with those at 0."""
        values, lines = self._of_scaled, self._variances
        for _ in values:
            below = min(values)
            if below >= 0.0:
                break
            worst = values.index(below)
            line = lines[worst]
            if line[worst] <= 0.0:  # it is held at 0 already, and this is rounding
                break
            values = [value - below / line[worst] * by for value, by in zip(values, line, strict=True)]
            values[worst] = 0.0
            lines = [
                [value - other[worst] / line[worst] * by for value, by in zip(other, line, strict=True)]
                for other in lines
            ]
        self._of_scaled = [max(0.0, value) for value in values]
