"""A batch model behind a policy, in simulated time: Poisson arrivals, Triton's batcher, noisy batches."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier
from router.admission.demand import Demand, EntryState, QueueEntry, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from python_backend.costs.batch_cost import BatchCost
    from router.admission.policy import Policy


@dataclass(frozen=True)
class BatchModel:
    """One instance: it takes what waits, up to `max_batch` rows, `delay_s` after the first came at most.

    `noise` is the spread of a batch's time, as of a lognormal; of `hiccup_every` one takes three times as
    long.
    """

    cost: BatchCost
    max_batch: int = 64
    delay_s: float = 0.0
    noise: float = 0.2
    hiccup_every: int = 0


@dataclass(frozen=True)
class Asked:
    """What clients ask for: so many requests a second, of so many tokens each."""

    per_s: float
    objective_s: float
    seconds: float = 60.0
    tenants: int = 1
    tokens: Callable[[random.Random], int] = lambda chance: 12


@dataclass
class Outcome:
    took_s: list[float] = field(default_factory=list)
    refused: int = 0
    seconds: float = 0.0

    def quantile(self, part: float) -> float:
        return sorted(self.took_s)[int(part * (len(self.took_s) - 1))]

    def good_per_s(self, objective_s: float) -> float:
        return sum(took_s <= objective_s for took_s in self.took_s) / self.seconds


@dataclass
class _Progress:
    completion_tokens: int = 0


class _Run:
    def __init__(self, policy: Policy, model: BatchModel, asked: Asked, seed: int, warm_up_s: float) -> None:
        self.policy, self.model, self.asked = policy, model, asked
        self.chance = random.Random(seed)
        self.warm_up_s = warm_up_s
        self.outcome = Outcome(seconds=asked.seconds - warm_up_s)
        self.events: list[tuple[float, int, str, object]] = []
        self.numbers = count()
        self.queue: deque[tuple[float, QueueEntry]] = deque()
        self.is_computing = False
        self.batches = 0

    def at(self, when_s: float, what: str, value: object = None) -> None:
        heappush(self.events, (when_s, next(self.numbers), what, value))

    def play(self) -> Outcome:
        self.at(0.0, "arrive")
        while self.events:
            now_s, _, what, value = heappop(self.events)
            if what == "arrive":
                self.arrive(now_s)
            elif what == "done":
                self.is_computing = False
                for entry in value:  # type: ignore[attr-defined]
                    self.finish(entry, now_s)
            self.hand_on(now_s)
            self.compute(now_s)
        self.policy.check()
        return self.outcome

    def arrive(self, now_s: float) -> None:
        asked, chance = self.asked, self.chance
        if now_s < asked.seconds:
            self.at(now_s + chance.expovariate(asked.per_s), "arrive")
            tenant = f"tenant-{chance.randrange(asked.tenants)}"
            deadline_s = now_s + asked.objective_s
            demand = Demand(tenant, Tier.STANDARD, asked.tokens(chance), 0, 1, now_s, deadline_s, rows=1)
            entry = self.policy.admit(demand, _Progress(), now_s)
            if isinstance(entry, Refused):
                self.outcome.refused += now_s >= self.warm_up_s
            elif entry.state is EntryState.RUNNING:
                self.queue.append((now_s, entry))
            else:
                self.at(now_s + 0.02, "look")

    def hand_on(self, now_s: float) -> None:
        for entry in self.policy.hand_on(now_s):
            if entry.is_running:
                self.queue.append((now_s, entry))
            elif entry.refusal is not None:
                self.outcome.refused += now_s >= self.warm_up_s

    def compute(self, now_s: float) -> None:
        model = self.model
        if self.is_computing or not self.queue:
            return
        due_s = self.queue[0][0] + model.delay_s
        if len(self.queue) < model.max_batch and now_s < due_s - 1e-9:
            self.at(due_s, "look")
            return
        entries = [self.queue.popleft()[1] for _ in range(min(model.max_batch, len(self.queue)))]
        self.batches += 1
        tokens = sum(entry.demand.prompt_tokens for entry in entries)
        took_ms = model.cost.batch_ms(len(entries), tokens) * self.chance.lognormvariate(0, model.noise)
        if model.hiccup_every and self.batches % model.hiccup_every == 0:
            took_ms *= 3
        self.is_computing = True
        self.at(now_s + took_ms / 1000, "done", entries)

    def finish(self, entry: QueueEntry, now_s: float) -> None:
        self.policy.end(entry, now_s)
        if entry.demand.arrived_s >= self.warm_up_s:
            self.outcome.took_s.append(now_s - entry.demand.arrived_s)


def played(policy: Policy, model: BatchModel, asked: Asked, seed: int = 1, warm_up_s: float = 6.0) -> Outcome:
    return _Run(policy, model, asked, seed, warm_up_s).play()


def capacity_per_s(cost: BatchCost, objective_s: float, max_batch: int = 64, tokens: int = 12) -> float:
    """Rows a second in the largest batches of which two, one's own and the one before, fit the objective."""
    fitting = [
        rows
        for rows in range(1, max_batch + 1)
        if 2 * cost.batch_ms(rows, tokens * rows) <= 1000 * objective_s
    ]
    rows = max(fitting, default=1)
    return 1000 * rows / cost.batch_ms(rows, tokens * rows)
