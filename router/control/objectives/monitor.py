"""What requests of each model and tier took over the last minutes, as this router has seen it."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from router.control.objectives.distribution import Distribution, added_up, bucket_of
from router.core.objective import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from python_backend.wire.tiers import Tier
    from router.control.objectives.distribution import Percentiles
    from router.core.objective import Objective

WINDOW_S = 300.0
SLOT_S = 5.0
_SLOTS = int(WINDOW_S / SLOT_S)
_NOTHING = Distribution()


class Series:
    """One measure of one model and tier: counts of the slot of time that it is in, and of those before it.

    `judged` and `missed` count for ever, while there is an objective: `limit_s`.
    """

    __slots__ = ("_clock", "_counts", "_former", "_slot", "_total", "judged", "limit_s", "missed")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.limit_s: float | None = None
        self.judged = 0
        self.missed = 0
        self._clock = clock
        self._slot = 0
        self._counts: dict[int, int] = {}
        self._former: deque[tuple[int, dict[int, int]]] = deque()
        self._total: dict[int, int] = {}  # of the former ones

    def note(self, took_s: float, count: int = 1) -> None:
        self.note_each(((took_s, count),))

    def note_each(self, noted: Iterable[tuple[float, int]]) -> None:
        """Seconds, and how often they were taken; for every token, so it does as little as it can."""
        slot = int(self._clock() / SLOT_S)
        if slot != self._slot:
            self._turn_to(slot)
        counts, limit_s = self._counts, self.limit_s
        for took_s, count in noted:
            bucket = bucket_of(took_s)
            counts[bucket] = counts.get(bucket, 0) + count
            if limit_s is not None:
                self.judged += count
                if took_s > limit_s:
                    self.missed += count

    def last(self, last_s: float) -> Distribution:
        """Over the last `last_s` seconds, rounded to slots."""
        slot = int(self._clock() / SLOT_S)
        if slot != self._slot:
            self._turn_to(slot)
        if last_s >= WINDOW_S:
            return added_up((self._total, self._counts))
        first = slot - max(round(last_s / SLOT_S), 1)
        return added_up((self._counts, *(counts for at, counts in self._former if at > first)))

    def _turn_to(self, slot: int) -> None:
        """What has left the window leaves the sum."""
        former, total = self._former, self._total
        if self._counts:
            former.append((self._slot, self._counts))
            for bucket, count in self._counts.items():
                total[bucket] = total.get(bucket, 0) + count
        self._slot, self._counts = slot, {}
        while former and former[0][0] <= slot - _SLOTS:
            for bucket, count in former.popleft()[1].items():
                if total[bucket] == count:
                    del total[bucket]
                else:
                    total[bucket] -= count


class TierSeries:
    """All measures of one model and tier, looked up once a request."""

    __slots__ = ("end_to_end", "first_token", "inter_token", "refused")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.first_token = Series(clock)
        self.inter_token = Series(clock)
        self.end_to_end = Series(clock)
        self.refused = Series(clock)  # counted alone

    def of(self, metric: Metric) -> Series:
        found: Series = getattr(self, metric.value)
        return found

    def hold_to(self, objective: Objective | None) -> None:
        """What is measured from now on is judged by it; by nothing, where there is none."""
        for metric in Metric:
            self.of(metric).limit_s = None if objective is None else objective.limit_s(metric)


class ObjectiveMonitor:
    """Models have the names of the registry, never a client's, so their number is bounded."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._series: dict[tuple[str, Tier], TierSeries] = {}
        self._objectives: Mapping[tuple[str, Tier], Objective] = {}

    def hold_to(self, objectives: Iterable[Objective]) -> None:
        """All that are set, whenever one of them has changed."""
        self._objectives = {(each.model, each.tier): each for each in objectives}
        for key in self._objectives.keys() - self._series.keys():
            self.series(*key)
        for key, found in self._series.items():
            found.hold_to(self._objectives.get(key))

    def series(self, model: str, tier: Tier) -> TierSeries:
        found = self._series.get((model, tier))
        if found is None:
            found = self._series[model, tier] = TierSeries(self._clock)
            found.hold_to(self._objectives.get((model, tier)))
        return found

    def first_token(self, model: str, tier: Tier, took_s: float) -> None:
        """From a request's arrival to the first token of its answer."""
        self.series(model, tier).first_token.note(took_s)

    def inter_token(self, model: str, tier: Tier, took_s: float, count: int = 1) -> None:
        """Time per token, of `count` tokens that came together."""
        self.series(model, tier).inter_token.note(took_s, count)

    def end_to_end(self, model: str, tier: Tier, took_s: float) -> None:
        """Of a request that was answered, from its arrival to its end."""
        self.series(model, tier).end_to_end.note(took_s)

    def refused(self, model: str, tier: Tier) -> None:
        """Refused before it was dispatched, as there was no capacity for it in time."""
        self.series(model, tier).refused.note(0.0)

    def refusals(self, model: str, tier: Tier, last_s: float = WINDOW_S) -> int:
        found = self._series.get((model, tier))
        return 0 if found is None else found.refused.last(last_s).samples

    def measured(self, model: str, tier: Tier, metric: Metric, last_s: float = WINDOW_S) -> Distribution:
        found = self._series.get((model, tier))
        return _NOTHING if found is None else found.of(metric).last(last_s)

    def window(self, model: str, tier: Tier, metric: Metric, last_s: float = WINDOW_S) -> Percentiles:
        return self.measured(model, tier, metric, last_s).percentiles

    def all_series(self) -> Iterator[tuple[str, Tier, TierSeries]]:
        for (model, tier), found in list(self._series.items()):
            yield model, tier, found
