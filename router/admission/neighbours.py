"""Finds the tenant that asks for much more than its share while others wait."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

_BUCKET_S, _BUCKETS = 5.0, 6
# Those who come when so many have been seen in a bucket are counted together: who floods is seen in the next.
_MOST_TENANTS = 256
# It begins above these and ends only well below them: twice its share, and half of all that is asked for.
_BEGIN_TIMES, _BEGIN_SHARE = 2.0, 0.5
_END_TIMES, _END_SHARE = 1.5, 0.4


@dataclass(frozen=True, slots=True)
class NoisyTenant:
    """`share` is its part of all work offered, `times_over` how many times its fair share it asks for."""

    tenant: str
    share: float
    times_over: float
    since_s: float


class _Bucket:
    __slots__ = ("began_s", "begun_us", "offered_us", "waited", "weights")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.offered_us: dict[str, int] = {}
        self.weights: dict[str, float] = {}
        self.begun_us = 0
        self.waited: set[str] = set()  # two names are enough: then others waited, whoever is asked about


class Neighbours:
    """Over the last 30 seconds; bounded however many tenants there are.

    What was begun while others waited is what there was to share, so no cost has to be known.
    """

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque(maxlen=_BUCKETS)
        self._noisy: NoisyTenant | None = None

    def offered(self, tenant: str, weight: float, cost_us: int, now_s: float) -> None:
        bucket = self._bucket(now_s)
        if tenant not in bucket.offered_us and len(bucket.offered_us) >= _MOST_TENANTS:
            tenant, weight = "", 1.0
        bucket.offered_us[tenant] = bucket.offered_us.get(tenant, 0) + cost_us
        bucket.weights[tenant] = weight

    def waits(self, tenant: str, now_s: float) -> None:
        waited = self._bucket(now_s).waited
        if len(waited) < 2:
            waited.add(tenant)

    def spared(self, now_s: float) -> None:
        """Somebody is held back so that others need not wait: they would have to."""
        self.waits("", now_s)

    def begun(self, cost_us: int, now_s: float) -> None:
        self._bucket(now_s).begun_us += cost_us

    def noisy(self, now_s: float) -> NoisyTenant | None:
        """The one that there is, if any; it stays the same one until it has calmed down."""
        self._bucket(now_s)
        buckets = [each for each in self._buckets if now_s - each.began_s < _BUCKET_S * _BUCKETS]
        offered: dict[str, int] = {}
        weights: dict[str, float] = {}
        waited: set[str] = set()
        for bucket in buckets:
            weights.update(bucket.weights)
            waited |= bucket.waited
            for tenant, cost_us in bucket.offered_us.items():
                offered[tenant] = offered.get(tenant, 0) + cost_us
        offered.pop("", None)
        begun_us = sum(bucket.begun_us for bucket in buckets)
        self._noisy = self._judge(offered, weights, waited, begun_us, now_s)
        return self._noisy

    def _judge(
        self,
        offered: dict[str, int],
        weights: dict[str, float],
        waited: set[str],
        begun_us: int,
        now_s: float,
    ) -> NoisyTenant | None:
        if len(offered) < 2 or not begun_us:
            return None
        before = self._noisy
        name = max(offered, key=lambda tenant: offered[tenant])
        if before is not None and before.tenant in offered:
            name = before.tenant
        is_same = before is not None and before.tenant == name
        share = offered[name] / sum(offered.values())
        fair_us = begun_us * weights[name] / sum(weights.values())
        times_over = offered[name] / fair_us
        least_times, least_share = (_END_TIMES, _END_SHARE) if is_same else (_BEGIN_TIMES, _BEGIN_SHARE)
        if times_over <= least_times or share <= least_share or not waited - {name}:
            return None
        found = NoisyTenant(name, share, times_over, now_s)
        return replace(found, since_s=before.since_s) if is_same and before is not None else found

    def _bucket(self, now_s: float) -> _Bucket:
        if not self._buckets or now_s - self._buckets[-1].began_s >= _BUCKET_S:
            self._buckets.append(_Bucket(now_s))
        return self._buckets[-1]
