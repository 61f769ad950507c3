"""How much work will be asked for when a replica that is begun now would serve."""

from __future__ import annotations

from math import ceil

DAY_S = 86_400.0
# Demand is remembered in means over so long; the trend is that of the latest few.
_BUCKET_S, _TREND_BUCKETS = 60.0, 6
_DAY_BUCKETS = int(DAY_S / _BUCKET_S)
# A trend does not go on for ever: it counts for at most so long, and for no more than so much of the level.
_TREND_S, _MOST_TREND = 600.0, 1.0
# What yesterday did from this time of day on is believed within these bounds.
_LEAST_RATIO, _MOST_RATIO = 0.5, 3.0
# An hour has bursts of the kind that the next one has.
_HOUR_BUCKETS = 60


class DemandForecast:
    """Level, trend and the day before. Work is in any unit a second; times never go back, gaps may be."""

    def __init__(self) -> None:
        self._days: dict[int, float] = {}  # bucket -> mean
        self._sum, self._count, self._bucket = 0.0, 0, -1

    def observe(self, demand: float, now_s: float) -> None:
        """What is asked for at this moment."""
        bucket = int(now_s // _BUCKET_S)
        if bucket != self._bucket:
            self._close(bucket)
        self._sum += demand
        self._count += 1

    def foresee(self, demand: float, lead_s: float, now_s: float) -> float:
        """The highest of now and of `lead_s` later; what has risen since the last minute rises once more."""
        rise = demand - self._days.get(self._bucket - 1, demand)
        trended = demand + max(self._slope_per_s() * min(lead_s, _TREND_S), rise)
        expected = max(min(trended, (1 + _MOST_TREND) * demand), demand * self._ratio(lead_s, now_s))
        return max(demand, expected)

    def highest(self) -> float | None:
        """The highest minute of the last hour; None where not all of them are known."""
        hour = range(self._bucket - _HOUR_BUCKETS, self._bucket)
        minutes = [self._days[each] for each in hour if each in self._days]
        return max(minutes) if len(minutes) == _HOUR_BUCKETS else None

    def _close(self, bucket: int) -> None:
        if self._count:
            self._days[self._bucket] = self._sum / self._count
            for old in [each for each in self._days if each < bucket - _DAY_BUCKETS - 30]:
                del self._days[old]
        self._bucket, self._sum, self._count = bucket, 0.0, 0

    def _slope_per_s(self) -> float:
        """By least squares; a fall is not counted on."""
        latest = [
            (number, self._days[self._bucket - number])
            for number in range(1, _TREND_BUCKETS + 1)
            if self._bucket - number in self._days
        ]
        if len(latest) < 3:
            return 0.0
        mean_x = sum(x for x, _ in latest) / len(latest)
        mean_y = sum(y for _, y in latest) / len(latest)
        spread = sum((x - mean_x) ** 2 for x, _ in latest)
        slope = -sum((x - mean_x) * (y - mean_y) for x, y in latest) / spread
        return max(slope, 0.0) / _BUCKET_S

    def _ratio(self, lead_s: float, now_s: float) -> float:
        """Yesterday's demand `lead_s` after this time of day, beside that at this time of day."""
        here = int((now_s - DAY_S) // _BUCKET_S)
        ahead = ceil(lead_s / _BUCKET_S)
        then = [self._days[each] for each in range(here - 4, here + 1) if each in self._days]
        soon = [self._days[each] for each in range(here + 1, here + ahead + 3) if each in self._days]
        if not then or not soon or sum(then) <= 0:
            return 0.0
        ratio = (sum(soon) / len(soon)) / (sum(then) / len(then))
        return min(max(ratio, _LEAST_RATIO), _MOST_RATIO)
