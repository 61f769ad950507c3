"""Prices a request, decides whether it is refused at once, and notes who asked for how much."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from math import exp, inf
from typing import TYPE_CHECKING

from python_backend.sharing.asks import LIGHT_WEIGHT, Asks
from python_backend.wire.tiers import Tier
from router.admission.batch_limit import BatchLimit
from router.admission.demand import EntryState, QueueEntry, Reason, Refused, Wait
from router.admission.forecast import service_s, wait_s
from router.admission.queue import TIER_WEIGHTS
from router.admission.running import kv_need, least_kv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.admission.demand import Demand, Progress
    from router.admission.forecast import Forecaster, OutputLengths
    from router.admission.running import Running

SOON_S = 1.0


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """What may be set for comparison; the defaults are what is served with."""

    tier_weights: Mapping[Tier, float] = field(default_factory=lambda: TIER_WEIGHTS)
    kv_share: float = 0.9  # of the cache is given out; the rest is for answers longer than predicted
    borrow_cap: float = 0.85  # of all that there is may be taken by tiers beyond their guarantee
    most_waiting: int = 10_000  # requests, however patient they are
    pass_s: float = 0.25  # so long smaller requests may pass one that does not fit yet
    stretch: float = 1.25  # a deadline leaves at least so many times what the prompt takes alone


SERVED_WITH = DispatchSettings()


class Judge:
    """Of one release. What it needs to know of the queue and the engine it reads from `running`."""

    def __init__(
        self, lengths: OutputLengths, running: Running, forecaster: Forecaster, settings: DispatchSettings
    ) -> None:
        self._lengths = lengths
        self._running = running
        self._allocation = running.allocation
        self._queue = running.queue
        self._forecaster = forecaster
        self._settings = settings
        self.limit = BatchLimit()
        self.neighbours = Neighbours()
        self._asks = Asks()
        self._token_us = running.prices.token_us  # by which was priced what was asked for
        self.risk = [Risk() for _ in Tier]
        self.offered = Faded()

    def priced(self, demand: Demand, progress: Progress, weight: float, now_s: float) -> QueueEntry:
        capacity, budget = self._allocation.capacity, self._allocation.kv_budget
        entry = QueueEntry(demand, progress, weight=weight, sequences=demand.sequences, offered_s=now_s)
        sequences = demand.sequences or 1
        each = -(-demand.max_tokens // sequences)
        expected = self._lengths.expect(demand.tenant, each)
        entry.prompt_us, entry.cost_us = self._running.prices.of(demand, expected)
        usual, most = (each, each) if capacity.holds_whole_answers else (expected.mean, expected.p90)
        if demand.rows:  # of a batch model: it has no cache, and no list of texts takes all that there is
            entry.sequences = min(demand.sequences, max(self._allocation.slots // 2, 1))
        entry.kv_tokens = kv_tokens = 0 if demand.rows else kv_need(demand, usual, capacity)
        if most > usual:
            entry.kv_spread = max(kv_need(demand, most, capacity) - kv_tokens, 0)
        if budget is not None and kv_tokens > budget:  # beyond that it has all of it, and may be preempted
            entry.kv_tokens = budget
        entry.context_tokens = demand.prompt_tokens / sequences
        entry.look_again_at = expected.mean * demand.sequences
        entry.service_s = service_s(demand, capacity, 0, 0, 0)
        self._forecaster.alone(entry, self._settings.stretch)
        return entry

    def refusal(self, entry: QueueEntry, is_held: bool, now_s: float) -> Refused | None:
        """Why it is refused at once, if it is; `is_held`: slots are kept for another entry."""
        demand, allocation = entry.demand, self._allocation
        allocation.asked_s[demand.tier] = now_s
        self._running.patience_s[demand.tier] = demand.deadline_s - demand.arrived_s
        self.offered.add(entry.cost_us, now_s)
        self.neighbours.offered(demand.tenant, entry.weight, entry.cost_us, now_s)
        if allocation.capacity.can_pause:
            self._weigh(entry, now_s)
        refusal, budget = None, allocation.kv_budget
        # What is reserved for it is never less than what it cannot do without.
        if demand.sequences > allocation.capacity.slots or (budget is not None and entry.kv_tokens >= budget):
            refusal = self._too_large(demand)
        if refusal is None and self._queue.waiting >= self._settings.most_waiting:
            refusal = self._too_many(demand)
        if refusal is None and self._running.prices.is_known:
            refusal = self._too_late(entry, is_held, now_s)
        if refusal is not None:
            entry.state = EntryState.ENDED
        elif entry.wait:
            self.neighbours.waits(demand.tenant, now_s)
            if entry.wait is Wait.HELD_BACK:
                self.neighbours.spared(now_s)
        return refusal

    def _weigh(self, entry: QueueEntry, now_s: float) -> None:
        """One of a tenant that asks for little has the weight, in the engine too, that lets it have that."""
        capacity, demand = self._allocation.capacity, entry.demand
        holder = (int(demand.tier), demand.tenant)
        engines, prices = None, self._running.prices
        if prices.token_us != self._token_us and prices.token_us > 0 < self._token_us:
            self._asks.reprice(prices.token_us / self._token_us)
        self._token_us = prices.token_us
        if prices.is_known:
            engines = max(capacity.replicas, 1) * max(capacity.slots_here, 1) / max(capacity.slots, 1)
        entry.is_light = self._asks.ask(holder, entry.weight, entry.cost_us, engines, now_s)
        if entry.is_light:
            entry.weight *= LIGHT_WEIGHT

    def _too_large(self, demand: Demand) -> Refused | None:
        capacity, budget = self._allocation.capacity, self._allocation.kv_budget
        if not capacity.slots or capacity.batch is not None:
            return None  # rows beyond the slots are computed in several batches
        if demand.sequences > capacity.slots:
            message = f"{demand.sequences} answers at once do not fit into {capacity.slots} slots"
            return Refused(Reason.TOO_LARGE, message)
        least = least_kv(demand, capacity)
        if budget is not None and least > budget:
            message = f"the request needs {least} tokens of the KV cache; {budget} are available"
            return Refused(Reason.TOO_LARGE, message)
        return None

    def _too_many(self, demand: Demand) -> Refused | None:
        """However patient requests are, the queue has an end; a flood fills only its own part of it."""
        most = self._settings.most_waiting
        if self._queue.waiting_of(demand) < most // max(self._queue.waiting_tenants, 1):
            return None
        return Refused(Reason.BUSY, "too many requests are waiting", self._running.drain_s() or SOON_S)

    def _too_late(self, entry: QueueEntry, is_held: bool, now_s: float) -> Refused | None:
        demand, allocation, queue = entry.demand, self._allocation, self._queue
        is_holding = demand.tenant in queue.held_by  # else it leaves nothing, and is at no limit
        lacking = self._running.lacking(entry) if is_holding else 0.0
        own_us = queue.own_us(demand) if queue.waiting else 0
        is_free = not own_us and lacking <= 0 and not is_held
        is_free = is_free and allocation.fits(entry) and allocation.is_open(demand.tier)
        is_at_limit = is_holding and queue.is_at_limit(entry)
        is_below = not is_free and not is_at_limit and allocation.displaces(entry)
        away_s = 0.0
        if is_at_limit or not (is_free or (is_below and allocation.displaces_now(entry, now_s))):
            entry.wait = Wait.BEHIND_OWN if own_us else Wait.BEHIND_OTHERS
            away_s = self._wait_s(entry, lacking, now_s)
        if self._running.entries:
            entry.service_s = self._running.service_s(demand)
        late_s = self._forecaster.predict(entry, away_s + entry.service_s, now_s)
        excess_s = demand.arrived_s + late_s - entry.deadline_s
        if demand.rows and allocation.capacity.batch is not None and not demand.is_strict:
            excess_s = now_s + self._batched_s(entry, away_s) - entry.deadline_s
        elif is_below or entry.is_light or (excess_s > 0 and not own_us and allocation.has_little(entry)):
            # What others have is no reason to refuse it.
            excess_s = now_s + entry.alone_s - entry.deadline_s
        elif excess_s > 0 or entry.wait:
            excess_s = self._own_excess_s(entry, excess_s, now_s)
        self.risk[demand.tier].add(excess_s > 0, now_s)
        if excess_s <= 0 or not self._forecaster.is_tried:
            return None
        self._forecaster.relax(entry)
        late = "after its own deadline" if demand.is_strict else "too late: the model is busy"
        message = f"the first token would come {late}"
        return Refused(Reason.BUSY, message, self._retry_after_s(entry, max(excess_s, away_s), now_s))

    def _batched_s(self, entry: QueueEntry, away_s: float) -> float:
        """Until the answer of a batch model; what begins at once is in time, as few enough are in flight."""
        if not entry.wait:
            return entry.alone_s
        capacity, slots = self._allocation.capacity, self._allocation.slots
        tokens = self._running.prefill_tokens
        return away_s + max(entry.service_s, self.limit.late_s(capacity, slots, tokens))

    def _retry_after_s(self, entry: QueueEntry, otherwise_s: float, now_s: float) -> float:
        """When it would be let in: what it waits for is free before its deadline, as that stands then."""
        free_s = self._running.free_s(self._queue.waiting + 1, now_s)
        if free_s is None:
            return otherwise_s
        return max(free_s + entry.service_s - (entry.deadline_s - entry.demand.arrived_s), 0.0)

    def _own_excess_s(self, entry: QueueEntry, excess_s: float, now_s: float) -> float:
        """By how much it misses its deadline; within its tier's guarantee it pays for nobody else's work."""
        demand = entry.demand
        if self._queue.lanes[demand.tier].waiting or not self._allocation.is_guaranteed(demand.tier):
            return excess_s
        late_s = now_s - demand.arrived_s + self._forecaster.usual(demand.tier) * entry.service_s
        return demand.arrived_s + late_s - entry.deadline_s

    def _wait_s(self, entry: QueueEntry, lacking: float, now_s: float) -> float:
        """How long its turn is away."""
        allocation, tier = self._allocation, entry.demand.tier
        ahead = self._queue.ahead_of(entry)
        self._running.look(now_s, is_busy=self._queue.waiting > 0)
        part = allocation.part_of(entry)
        if lacking > 0:
            entry.wait = Wait.HELD_BACK
            part = min(max(part, lacking / max(allocation.slots, 1)), 1.0)
        replicas = allocation.capacity.replicas
        share = self._forecaster.flows.share(tier, ahead.guarantee, ahead.most_share, replicas, now_s)
        return wait_s(ahead, part, self._running.remaining_us, share, replicas)


_WINDOW_S = 30.0


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
