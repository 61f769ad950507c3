"""When the first token of a request will come, how long its answer will be, and how far both can be trusted.

A request that can begin at once waits for the prompts that the engine computes before its own, a chunk at a
time. One that cannot waits first for the work ahead of it: no more than what all tenants of its tier together
have waiting, and no more than what fair turns give the others until its own turn, at its tier's share of the
engine's time. What the sums leave out is learned as a factor, from past forecasts and what became of them;
how long an answer will be, from those before it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import ceil, exp, log
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier
from router.admission.allocation import BINS, SMALL_BINS, bin_of, top_of
from router.admission.capacity import BATCHES_IN_FLIGHT
from router.admission.demand import Wait

if TYPE_CHECKING:
    from router.admission.capacity import Capacity
    from router.admission.demand import Demand, QueueEntry
    from router.admission.queue import Ahead

_LEAST_FACTOR, _MOST_FACTOR = log(0.2), log(10.0)
# A factor's step, in logarithms: a hundred answers move it by a half at most.
_STEP, _FIRST_STEP = 0.04, 0.3
_FLOW_S = 5.0
# No forecast-based refusals before so many samples: lengths are unknown, and step costs are of a few alike.
_TRIED_AFTER = 32
# The first guess of how late a forecast may be: turns are harder to predict than the engine is.
_FIRST_LATE = {Wait.NONE: 1.3, Wait.BEHIND_OTHERS: 1.6, Wait.BEHIND_OWN: 1.3, Wait.HELD_BACK: 2.0}


def batches_s(
    capacity: Capacity, rows: int, ahead_rows: int, tokens: int = 0, ahead_tokens: int = 0
) -> float:
    """Until rows are computed behind others, in batches of the largest size.

    Half of those ahead are being computed, and half of that is done; the others wait with these. Tokens are
    spread evenly over the rows.
    """
    cost = capacity.batch
    if cost is None:
        return 0.0
    replicas = max(capacity.replicas, 1)
    most = max(capacity.slots // (BATCHES_IN_FLIGHT * replicas), 1)
    ahead = ceil(ahead_rows / replicas)
    computed = min(ahead // 2, most)
    computed_tokens = ahead_tokens / replicas * computed / ahead if ahead else 0.0
    waiting_ms = cost.token_ms * (tokens + ahead_tokens / replicas - computed_tokens)
    full, rest = divmod(rows + ahead - computed, most)
    in_flight_ms = cost.batch_ms(computed, computed_tokens) / 2 if ahead else 0.0
    rows_ms = full * cost.batch_ms(most) + (cost.batch_ms(rest) if rest else 0.0)
    return (in_flight_ms + rows_ms + waiting_ms) / 1000


def service_s(
    demand: Demand, capacity: Capacity, ahead_tokens: int = 0, sequences: int = 0, kv_tokens: int = 0
) -> float:
    """Until its first token if it begins now, beside what is in flight; without that, on an idle engine.

    A prompt is computed behind those ahead of it, in chunks, each in a step with all that run.
    """
    if capacity.batch is not None:
        rows = max(demand.rows, demand.sequences)
        return batches_s(capacity, rows, sequences, demand.prompt_tokens, ahead_tokens)
    step = capacity.step
    if step is None:
        return 0.0
    replicas = capacity.replicas or 1  # conditions are twice as fast as max and min, and this is asked often
    running = sequences / replicas
    tokens = demand.prompt_tokens + ahead_tokens / replicas
    others_ms = step.decode_sequence_ms * running + step.kv_kilotoken_ms * kv_tokens / replicas / 1000
    room = capacity.step_tokens - running
    if room * 4 < capacity.step_tokens or room < 1.0:
        room = max(capacity.step_tokens / 4, 1.0)
    steps = ceil(tokens / room) or 1
    in_flight_ms = (step.base_ms + others_ms) / 2 if sequences else 0.0
    return (in_flight_ms + steps * (step.base_ms + others_ms) + step.prefill_token_ms * tokens) / 1000


def wait_s(ahead: Ahead, part_of_engine: float, remaining_us: int, share: float, replicas: int) -> float:
    """Until its turn has come and what it takes of the engine, as a part of all, has become free.

    Sequences end evenly over the time that the longest of them takes, twice what they take on average.
    """
    rate_us = 1e6 * max(replicas, 1)
    turn_us = ahead.work_us / share + ahead.lead_us
    return (turn_us + 2 * part_of_engine * remaining_us) / rate_us


class Flows:
    """How much of the engine's time the tiers were recently given, by the price of what began."""

    def __init__(self) -> None:
        self._us = [0.0 for _ in Tier]
        self._at_s = 0.0
        self._since_s: float | None = None

    def add(self, tier: Tier, cost_us: int, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = self._at_s = now_s
        if now_s > self._at_s:
            fade = exp((self._at_s - now_s) / _FLOW_S)
            for each, us in enumerate(self._us):
                self._us[each] = us * fade
            self._at_s = now_s
        self._us[tier] += cost_us

    def share(self, tier: Tier, guaranteed: float, most: float, replicas: int, now_s: float) -> float:
        """What the others leave to a tier: no less than its guarantee, and no more than `most`."""
        fade = exp(min(self._at_s - now_s, 0.0) / _FLOW_S)
        known = 1 - exp((self._since_s - now_s) / _FLOW_S) if self._since_s is not None else 1.0
        all_us = max(1e6 * _FLOW_S * max(replicas, 1) * known, fade * sum(self._us), 1.0)
        others_us = fade * (sum(self._us) - self._us[tier])
        return max(guaranteed, min(1 - others_us / all_us, most))


class Quantile:
    """Follows a quantile of ratios, in small steps of its logarithm."""

    __slots__ = ("_log", "_seen", "_wanted", "value")

    def __init__(self, wanted: float, start: float) -> None:
        self._wanted = wanted
        self._log = log(start)
        self._seen = 0
        self.value = start

    def learn(self, ratio: float) -> None:
        step = max(_STEP, _FIRST_STEP / (1 + self._seen / 10))
        self._seen += 1
        move = step * self._wanted if ratio > self.value else -step * (1 - self._wanted)
        self._log = min(max(self._log + move, _LEAST_FACTOR), _MOST_FACTOR)
        self.value = exp(self._log)

    def relax(self) -> None:
        """A request was refused because of it: where it is too careful, that must not last."""
        self._log = max(self._log - _STEP * (1 - self._wanted) / 10, min(self._log, 0.0))
        self.value = exp(self._log)


class Forecaster:
    """Predicts first tokens, and learns factors from when they came.

    The factors are kept apart by what a request waits for, so that a tenant whose flood makes its own
    requests hard to predict does not make those of others look worse than they are.
    """

    def __init__(self) -> None:
        self._usual = [[Quantile(0.5, 1.0) for _ in Tier] for _ in Wait]
        self._late = [[Quantile(0.9, _FIRST_LATE[wait]) for _ in Tier] for wait in Wait]
        self.flows = Flows()
        self._samples = 0

    @property
    def is_tried(self) -> bool:
        """Whether there are enough samples to refuse a request for its forecast."""
        return self._samples >= _TRIED_AFTER

    def usual(self, tier: Tier) -> float:
        """The factor of what begins at once."""
        return self._usual[Wait.NONE][tier].value

    def alone(self, entry: QueueEntry, stretch: float) -> None:
        """Writes what it takes alone into an entry, whose deadline leaves `stretch` times that at least."""
        demand = entry.demand
        usual, late = self._usual[Wait.NONE][demand.tier].value, self._late[Wait.NONE][demand.tier].value
        entry.alone_s = usual * entry.service_s
        entry.deadline_s = demand.deadline_s
        if not demand.is_strict:
            late_s = (late if late > usual else usual) * entry.service_s
            entry.deadline_s = max(demand.deadline_s, demand.arrived_s + stretch * late_s)

    def predict(self, entry: QueueEntry, predicted_s: float, now_s: float) -> float:
        """Writes its forecast into an entry, and returns the late one."""
        demand, wait = entry.demand, entry.wait
        late_by_s = now_s - demand.arrived_s
        entry.predicted_s = predicted_s
        usual, late = self._usual[wait][demand.tier].value, self._late[wait][demand.tier].value
        entry.forecast_s = late_by_s + usual * predicted_s
        entry.forecast_late_s = late_s = late_by_s + (late if late > usual else usual) * predicted_s
        return late_s

    def learn(self, entry: QueueEntry, now_s: float) -> None:
        """Its first token came now."""
        if entry.predicted_s > 0:
            self._samples += 1
            tier, ratio = entry.demand.tier, (now_s - entry.offered_s) / entry.predicted_s
            self._usual[entry.wait][tier].learn(ratio)
            self._late[entry.wait][tier].learn(ratio)

    def relax(self, entry: QueueEntry) -> None:
        """It was refused for its forecast."""
        self._late[entry.wait][entry.demand.tier].relax()


# From so many answers on a tenant's own predict its next one better than those of all tenants.
_ENOUGH = 16.0
# When a histogram holds so many, the old ones count half from then on.
_FULL = 512.0
# The quantiles are computed again when there is so much more data.
_NEWS = 1 / 8


@dataclass(slots=True)  # not frozen: one is made for many a request
class Expected:
    """Tokens of one sequence: the median, the 90th percentile, and the mean, which counts in sums."""

    p50: int
    p90: int
    mean: int


# Before there are any answers; the limit of a request is often far more than it will use.
_PRIOR = Expected(200, 1000, 300)
_MIDDLES = [(top_of(index) + top_of(index - 1) + 1) / 2 if index else 0.0 for index in range(BINS)]


class _Histogram:
    __slots__ = ("_bins", "_since", "expected", "total")

    def __init__(self) -> None:
        self._bins = [0.0] * BINS
        self.total = 0.0
        self.expected: Expected | None = None  # None: to be computed again
        self._since = 0

    def add(self, tokens: int) -> None:
        if self.total >= _FULL:
            self._bins = [count / 2 for count in self._bins]
            self.total = sum(self._bins)
        self._bins[SMALL_BINS[tokens] if 0 <= tokens < len(SMALL_BINS) else bin_of(tokens)] += 1.0
        self.total += 1.0
        self._since += 1
        if self._since > _NEWS * self.total:
            self.expected = None

    def expect(self) -> Expected:
        self.expected = self.expect_beyond(0)
        self._since = 0
        return self.expected

    def expect_beyond(self, generated: int) -> Expected:
        """Of answers at least so long; where there are none, a little longer than that."""
        first = bin_of(generated)
        total = sum(self._bins[first:]) if first else self.total
        if total < 1.0:
            return Expected(generated + generated // 4 + 1, 2 * generated + 1, generated + generated // 2 + 1)
        p50 = p90 = 0
        seen, summed, half, most = 0.0, 0.0, total / 2, 0.9 * total
        for index in range(first, BINS):
            count = self._bins[index]
            if not count:
                continue
            seen += count
            summed += count * _MIDDLES[index]
            if not p50 and seen >= half:
                p50 = max(top_of(index), 1)
            if not p90 and seen >= most:
                p90 = max(top_of(index), 1)
        return Expected(p50, p90, max(round(summed / total), 1))


class OutputLengths:
    """How long answers of one release are; bounded however many tenants there are.

    The limit that a client sets says much about what it expects, so answers are kept apart by its power of
    two. A tenant with too few answers is expected to be like all together.
    """

    def __init__(self, most_tenants: int = 2048) -> None:
        self._most_tenants = most_tenants
        self._of_tenant: OrderedDict[str, dict[int, _Histogram]] = OrderedDict()
        self._of_all: dict[int, _Histogram] = {}

    def __len__(self) -> int:
        return len(self._of_tenant)

    def learn(self, tenant: str, max_tokens: int, generated: int) -> None:
        """From one answer that has ended by itself or at its limit."""
        if max_tokens <= 0 or generated < 0:
            return
        size = max_tokens.bit_length()
        mine = self._of_tenant.get(tenant)
        if mine is None:
            mine = self._of_tenant[tenant] = {}
            if len(self._of_tenant) > self._most_tenants:
                self._of_tenant.popitem(last=False)
        else:
            self._of_tenant.move_to_end(tenant)
        for histograms in (mine, self._of_all):
            histogram = histograms.get(size)
            if histogram is None:
                histogram = histograms[size] = _Histogram()
            histogram.add(min(generated, max_tokens))

    def expect(self, tenant: str, max_tokens: int) -> Expected:
        """What an answer of this tenant with this limit will need."""
        histogram = self._find(tenant, max_tokens)
        found = _PRIOR if histogram is None else histogram.expected or histogram.expect()
        if found.p90 <= max_tokens:
            return found
        return Expected(min(found.p50, max_tokens), max_tokens, min(found.mean, max_tokens))

    def remaining(self, tenant: str, max_tokens: int, generated: int) -> Expected:
        """What is still to come of an answer that has so many tokens already."""
        left = max(max_tokens - generated, 0)
        histogram = self._find(tenant, max_tokens)
        if histogram is not None:
            whole = histogram.expect_beyond(generated)
        elif generated < _PRIOR.p50:
            whole = _PRIOR
        else:  # nothing is known: as much is to come as has come
            whole = Expected(2 * generated, max(4 * generated, _PRIOR.p90), 2 * generated)
        p50, p90, mean = (
            min(left, max(tokens - generated, 1)) for tokens in (whole.p50, whole.p90, whole.mean)
        )
        return Expected(p50, p90, mean)

    def _find(self, tenant: str, max_tokens: int) -> _Histogram | None:
        size = max_tokens.bit_length()
        mine = self._of_tenant.get(tenant)
        if mine is not None:
            histogram = mine.get(size)
            if histogram is not None and histogram.total >= _ENOUGH:
                return histogram
        histogram = self._of_all.get(size)
        return histogram if histogram is not None and histogram.total >= _ENOUGH else None
