"""When the first token of a request will be there, and how far that can be trusted.

A request that can begin at once waits for the prompts that the engine computes before its own, a chunk at a
time. One that cannot waits first for the work ahead of it: no more than what all tenants of its tier together
have waiting, and no more than what fair turns let the others have until its own turn, at the part of the
engine's time that its tier gets. What the sums leave out is learned as a factor, from what came true.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, log
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier
from router.admission.demand import Wait

if TYPE_CHECKING:
    from router.admission.demand import Capacity, Demand, Place

# One batch is computed while the next one gathers: what is under way is two of them.
_BATCHES_UNDER_WAY = 2
_LEAST_FACTOR, _MOST_FACTOR = log(0.2), log(10.0)
# A factor's step, in logarithms: a hundred answers move it by a half at most.
_STEP, _FIRST_STEP = 0.04, 0.3
_FLOW_S = 5.0
# Before that nobody knows how long answers are here, and what was learned of steps is of a few alike.
_TRIED_AFTER = 32
# What is thought of forecasts before any has come true: turns are harder to foretell than the engine is.
_FIRST_LATE = {Wait.NONE: 1.3, Wait.BEHIND_OTHERS: 1.6, Wait.BEHIND_OWN: 1.3, Wait.HELD_BACK: 2.0}


def prefill_s(
    capacity: Capacity, prompt_tokens: int, ahead_tokens: int, sequences: int, kv_tokens: int
) -> float:
    """Until a prompt is computed behind others, in chunks, each in a step with all that run."""
    step = capacity.step
    if step is None:
        return 0.0
    replicas = capacity.replicas or 1  # conditions are twice as fast as max and min, and this is asked often
    running = sequences / replicas
    tokens = prompt_tokens + ahead_tokens / replicas
    others_ms = step.decode_sequence_ms * running + step.kv_kilotoken_ms * kv_tokens / replicas / 1000
    room = capacity.step_tokens - running
    if room * 4 < capacity.step_tokens or room < 1.0:
        room = max(capacity.step_tokens / 4, 1.0)
    steps = ceil(tokens / room) or 1
    under_way_ms = (step.base_ms + others_ms) / 2 if sequences else 0.0
    return (under_way_ms + steps * (step.base_ms + others_ms) + step.prefill_token_ms * tokens) / 1000


def batches_s(capacity: Capacity, rows: int, ahead_rows: int) -> float:
    """Until rows are computed behind others, in batches of the most that one takes.

    Half of those ahead are being computed, and half of that is done; the others wait with these.
    """
    cost = capacity.batch
    if cost is None:
        return 0.0
    replicas = max(capacity.replicas, 1)
    most = max(capacity.places // (_BATCHES_UNDER_WAY * replicas), 1)
    ahead = ceil(ahead_rows / replicas)
    computed = min(ahead // 2, most)
    full, rest = divmod(rows + ahead - computed, most)
    under_way_ms = cost.batch_ms(computed) / 2 if ahead else 0.0
    return (under_way_ms + full * cost.batch_ms(most) + (cost.batch_ms(rest) if rest else 0.0)) / 1000


@dataclass(slots=True)  # not frozen: one is made for each request, which would take thrice as long
class Queue:
    """What is ahead of a request that has to wait, in microseconds of engine time; weights of who waits.

    `round_us` is one request of each other tenant that waits in its tier. `lead_us` is what the other tiers
    are given first because its own has had more than its share of late, `own_lead_us` the same for the other
    tenants of its tier.
    """

    tier_us: int
    own_us: int
    round_us: float
    weight: float
    weight_of_all: float
    lead_us: float = 0.0
    own_lead_us: float = 0.0
    guarantee: float = 1.0  # of its tier, and the most that it gets beside the tiers that wait as well
    most_share: float = 1.0

    @property
    def ahead_us(self) -> float:
        """A flood of others counts only as far as fair turns let it come first."""
        turns_us = self.own_us * self.weight_of_all / self.weight + self.round_us + self.own_lead_us
        return max(min(float(self.tier_us), turns_us), 0.0)


def wait_s(queue: Queue, part_of_engine: float, remaining_us: int, share: float, replicas: int) -> float:
    """Until its turn has come and what it takes of the engine, as a part of all, has become free.

    Sequences end evenly over the time that the longest of them takes, twice what they take on the average.
    """
    rate_us = 1e6 * max(replicas, 1)
    turn_us = queue.ahead_us / share + queue.lead_us
    return (turn_us + 2 * part_of_engine * remaining_us) / rate_us


class Flows:
    """How much of the engine's time the tiers were lately given, as far as it was ordered by requests."""

    def __init__(self) -> None:
        self._us = [0.0 for _ in Tier]
        self._at_s = 0.0
        self._since_s: float | None = None

    def add(self, tier: Tier, cost_us: int, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = self._at_s = now_s
        if now_s > self._at_s:
            fade = exp((self._at_s - now_s) / _FLOW_S)
            self._us = [us * fade for us in self._us]
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
        """Nobody was let in because of it: where it is too careful, that must not last."""
        self._log = max(self._log - _STEP * (1 - self._wanted) / 10, min(self._log, 0.0))
        self.value = exp(self._log)


class Factors:
    """What forecasts are multiplied by.

    They are kept apart by what a request waits for, so that a tenant whose flood makes its own requests hard
    to foretell does not make those of others look worse than they are.
    """

    def __init__(self) -> None:
        self._usual = [[Quantile(0.5, 1.0) for _ in Tier] for _ in Wait]
        self._late = [[Quantile(0.9, _FIRST_LATE[wait]) for _ in Tier] for wait in Wait]

    def usual(self, tier: Tier, wait: Wait) -> float:
        return self._usual[wait][tier].value

    def late(self, tier: Tier, wait: Wait) -> float:
        return max(self._late[wait][tier].value, self._usual[wait][tier].value)

    def learn(self, tier: Tier, wait: Wait, foretold_s: float, took_s: float) -> None:
        if foretold_s > 0:
            ratio = took_s / foretold_s
            self._usual[wait][tier].learn(ratio)
            self._late[wait][tier].learn(ratio)

    def relax(self, tier: Tier, wait: Wait) -> None:
        self._late[wait][tier].relax()


@dataclass(slots=True)  # not frozen, for the same reason
class Engine:
    """What is under way when somebody asks."""

    capacity: Capacity
    prefill_tokens: int
    sequences: int
    kv_tokens: int
    remaining_us: int = 0


class Forecaster:
    """Foretells, and learns from what came true."""

    def __init__(self) -> None:
        self._factors = Factors()
        self._flows = Flows()
        self._come_true = 0

    @property
    def is_tried(self) -> bool:
        """Whether enough came true to refuse anybody for a forecast."""
        return self._come_true >= _TRIED_AFTER

    def begun(self, place: Place, now_s: float) -> None:
        self._flows.add(place.demand.tier, place.cost_us, now_s)

    def alone(self, place: Place, capacity: Capacity) -> float:
        """Writes what it takes itself, on an idle engine, into a place, and tells what nine of ten keep."""
        service_s = _service_s(place.demand, Engine(capacity, 0, 0, 0))
        place.alone_s = self._factors.usual(place.demand.tier, Wait.NONE) * service_s
        return self._factors.late(place.demand.tier, Wait.NONE) * service_s

    def once_begun_s(self, demand: Demand, engine: Engine) -> float:
        """Until its first token is there if it begins now."""
        return self._factors.usual(demand.tier, Wait.NONE) * _service_s(demand, engine)

    def foretell(self, place: Place, engine: Engine, queue: Queue, part: float, now_s: float) -> float:
        """Writes the forecast into a place, and tells how long its turn is away."""
        demand, wait = place.demand, place.wait
        replicas = engine.capacity.replicas
        waited_s = 0.0
        if wait:
            share = self._flows.share(demand.tier, queue.guarantee, queue.most_share, replicas, now_s)
            waited_s = wait_s(queue, part, engine.remaining_us, share, replicas)
        place.foretold_s = waited_s + _service_s(demand, engine)
        late_by_s = now_s - demand.arrived_s
        place.forecast_s = late_by_s + self._factors.usual(demand.tier, wait) * place.foretold_s
        place.forecast_late_s = late_by_s + self._factors.late(demand.tier, wait) * place.foretold_s
        return waited_s

    def came_true(self, place: Place, now_s: float) -> None:
        if place.foretold_s > 0:
            self._come_true += 1
            took_s = now_s - place.offered_s
            self._factors.learn(place.demand.tier, place.wait, place.foretold_s, took_s)

    def refused(self, place: Place) -> None:
        self._factors.relax(place.demand.tier, place.wait)


def _service_s(demand: Demand, engine: Engine) -> float:
    capacity = engine.capacity
    if capacity.batch is not None:
        return batches_s(capacity, max(demand.rows, demand.sequences), engine.sequences)
    return prefill_s(
        capacity, demand.prompt_tokens, engine.prefill_tokens, engine.sequences, engine.kv_tokens
    )
