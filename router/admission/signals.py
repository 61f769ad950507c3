"""What a release reports for metrics and scaling."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import ceil, exp, inf
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

_WINDOW_S = 30.0
# More replicas: when so much of the best tier is at risk, or so much of its objective is queue, for so long.
_RISK, _DRAIN_PART, _PRESSED_S = 0.05, 0.5, 15.0
# One less: when without it the queue would stay this short and the rest half idle, for so long.
_EASY_DRAIN_PART, _EASY_USE, _EASY_S = 0.3, 0.5, 600.0
# A replica is not planned to be busier than that.
_PLANNED_USE = 0.7


@dataclass(frozen=True, slots=True)
class Signals:
    """`drain_s`: until all that runs and waits would be done; None while the cost of work is not known.

    `risk` is the part of the requests of about 30 seconds whose first token was predicted to be too late.
    `kv_budget_tokens` is None where the cache is no limit. `wanted_replicas` is how many the offered work
    needs; never less than one.
    """

    drain_s: float | None
    risk: Mapping[Tier, float]
    waiting: Mapping[Tier, int]
    running: int
    kv_reserved_tokens: int = 0
    kv_budget_tokens: int | None = None
    wanted_replicas: int = 1
    noisy: NoisyTenant | None = None


class Faded:
    """A sum that decays over time."""

    __slots__ = ("_at_s", "_sum")
    window_s = _WINDOW_S

    def __init__(self) -> None:
        self._sum = 0.0
        self._at_s = 0.0

    def add(self, value: float, now_s: float) -> None:
        if now_s > self._at_s:
            self._sum *= exp((self._at_s - now_s) / _WINDOW_S)
            self._at_s = now_s
        self._sum += value

    def value(self, now_s: float) -> float:
        return self._sum * exp(min(self._at_s - now_s, 0.0) / _WINDOW_S)


class Risk:
    """Which part of the recent requests of a tier was predicted to be too late; 0 when there are none."""

    __slots__ = ("_all", "_at_s", "_late")

    def __init__(self) -> None:
        self._late = self._all = self._at_s = 0.0

    def add(self, is_late: bool, now_s: float) -> None:
        if now_s > self._at_s:
            fade = exp((self._at_s - now_s) / _WINDOW_S)
            self._late *= fade
            self._all *= fade
            self._at_s = now_s
        self._late += is_late
        self._all += 1.0

    def value(self, now_s: float) -> float:
        fade = exp(min(self._at_s - now_s, 0.0) / _WINDOW_S)
        return fade * self._late / max(self._all, 1.0)  # without requests there is no risk


@dataclass(frozen=True, slots=True)
class Load:
    """What scaling goes by; `offered` is compute units asked for in a second, refused requests included."""

    replicas: int
    drain_s: float
    risk: float
    objective_s: float
    offered: float


class Scaling:
    """How many replicas are wanted; it changes with a delay, which is longer for fewer than for more."""

    def __init__(self) -> None:
        self._pressed_since_s: float | None = None
        self._easy_since_s: float | None = None

    def wanted(self, load: Load, now_s: float) -> int:
        here = max(load.replicas, 1)
        is_pressed = load.risk > _RISK or load.drain_s > _DRAIN_PART * load.objective_s
        self._pressed_since_s = _since(is_pressed, self._pressed_since_s, now_s)
        use = load.offered / (1000 * here)
        is_easy = here > 1 and use < _EASY_USE
        is_easy = is_easy and load.drain_s * here / (here - 1) < _EASY_DRAIN_PART * load.objective_s
        self._easy_since_s = _since(is_easy and not is_pressed, self._easy_since_s, now_s)
        if self._pressed_since_s is not None and now_s - self._pressed_since_s >= _PRESSED_S:
            return max(here, ceil(load.offered / (_PLANNED_USE * 1000)))
        if self._easy_since_s is not None and now_s - self._easy_since_s >= _EASY_S:
            return here - 1
        return here


def _since(is_so: bool, since_s: float | None, now_s: float) -> float | None:
    if not is_so:
        return None
    return now_s if since_s is None else since_s


_BUCKET_S, _BUCKETS = 5.0, 6
# Beyond so many in a bucket tenants are counted together: a flood is seen in the next bucket.
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
        self.waited: set[str] = set()  # two names are enough: then others waited, whoever is judged


class Neighbours:
    """Over the last 30 seconds; bounded however many tenants there are.

    What began while others waited is what there was to share, so no cost has to be known.
    """

    def __init__(self) -> None:
        self._newest = _Bucket(-inf)
        self._buckets: deque[_Bucket] = deque(maxlen=_BUCKETS)
        self._noisy: NoisyTenant | None = None

    def offered(self, tenant: str, weight: float, cost_us: int, now_s: float) -> None:
        bucket = self._newest
        if now_s - bucket.began_s >= _BUCKET_S:
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
        """A tenant is held back so that others need not wait: else they would."""
        self.waits("", now_s)

    def begun(self, cost_us: int, now_s: float) -> None:
        bucket = self._newest
        if now_s - bucket.began_s >= _BUCKET_S:
            bucket = self._bucket(now_s)
        bucket.begun_us += cost_us

    def noisy(self, now_s: float) -> NoisyTenant | None:
        """The noisy tenant, if there is one; it stays the same until it has calmed down."""
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
        if now_s - self._newest.began_s >= _BUCKET_S:
            self._newest = _Bucket(now_s)
            self._buckets.append(self._newest)
        return self._newest
