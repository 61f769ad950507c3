"""A modelled engine: how long its steps take, and which tokens they yield.

Between two changes of the batch all steps are alike but for the cache that grows with each, so a run of them
is one event, however many tokens it yields. An arrival cuts the run at the end of the step in flight, where
the real engine would plan again, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from python_backend.costs.step_cost import LearnedStepCost, StepCost, StepShape, weight_of
from python_backend.engine.scheduling.budget import StepLimits
from python_backend.engine.scheduling.pace import Pace, StepLoad
from python_backend.wire.engine_report import EngineReport
from python_backend.wire.tiers import Tier
from simulator.batch import Batch
from simulator.gaps import Gaps
from simulator.slowness import AS_USUAL, Slowness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simulator.batch import Chunks
    from simulator.request import SimulatedRequest


# An engine has learned what its steps cost after so many.
_UNKNOWN_STEPS = 40


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Each replica's cost and limits, as the engine's parameters have them.

    `depth` is how many steps may be in flight. With 2, as on a GPU, a step is planned before the one that
    runs is over: `ahead_s` before its end, or as soon as somebody comes who may join; and when that one
    begins, where nobody could join. Who comes later, and what becomes free, takes part a step later. Where
    the cost of steps is not kept from before, batches grow by trial first; what was kept may be wrong by now
    (`kept_cost`), and what was learned since may be, too (`believed_cost`). A prompt's token takes twice as
    long behind `even_context` others. Steps that are alike take as long as the first of them.
    """

    cost: StepCost
    slots: int = 64
    step_tokens: int = 512
    kv_tokens: int = 40_960
    block_tokens: int = 16
    holds_whole_answers: bool = False
    depth: int = 2
    ahead_s: float = 0.001
    reuses_blocks: bool = True
    is_cost_kept: bool = True
    kept_cost: StepCost | None = None
    believed_cost: StepCost | None = None
    even_context: int | None = None
    slowness: Slowness = AS_USUAL

    @property
    def total_blocks(self) -> int:
        return self.kv_tokens // self.block_tokens


@dataclass(slots=True)
class _Run:
    """`steps` steps alike from `began_s` on; each takes `growth_s` longer than the one before."""

    began_s: float
    step_s: float
    growth_s: float
    steps: int
    decoding: int
    chunks: Chunks

    def took_s(self, steps: int) -> float:
        return steps * self.step_s + self.growth_s * steps * (steps - 1) / 2

    def steps_by(self, now_s: float) -> int:
        """How many have ended by `now_s`."""
        elapsed_s = now_s - self.began_s + 1e-9
        if self.growth_s <= 0:
            return min(self.steps, int(elapsed_s / self.step_s))
        half = self.step_s / self.growth_s - 0.5
        return min(self.steps, int(math.sqrt(half * half + 2 * elapsed_s / self.growth_s) - half))


@dataclass(slots=True)
class RunResult:
    """What a finished run yielded."""

    first_tokens: list[SimulatedRequest] = field(default_factory=list)
    ended: list[SimulatedRequest] = field(default_factory=list)


class SimulatedEngine:
    """Requests come in by `add`; at `next_s` the caller calls `finish`, which returns what happened."""

    def __init__(
        self, name: str, shape: EngineShape, inter_token_ms: Mapping[Tier, float | None] | None = None
    ) -> None:
        self.name = name
        self.shape = shape
        self.next_s = math.inf
        self.steps_told = 0
        self.in_flight: set[SimulatedRequest] = set()  # these two for the choice of a replica
        self.begun = 0
        self.busy_s = 0.0
        self.decoded_steps = self.decoded_tokens = 0
        self.rows = self.idle_rows = 0  # of steps; idle are those that a paused one might have had
        self.gaps = Gaps()
        self.limits = StepLimits(shape.slots, shape.step_tokens)
        self._announced = shape.slots
        self._most_running: int | None = None
        self._pace = Pace(self.limits, shape.is_cost_kept)
        self._steps = 0
        self._targets_ms = {tier: ms for tier, ms in (inter_token_ms or {}).items() if ms is not None}
        self._batch = Batch(
            shape.slots,
            shape.total_blocks,
            shape.block_tokens,
            shape.holds_whole_answers,
            shape.reuses_blocks,
            shape.even_context,
        )
        self._run: _Run | None = None
        self._ends: list[tuple[int, int, SimulatedRequest]] = []
        self._arrived: list[SimulatedRequest] = []  # since the latest step was planned
        self._is_awaited = False  # whether the first of them is in the next step

    @property
    def outstanding_tokens(self) -> int:
        return sum([request.outstanding_tokens for request in self.in_flight])

    @property
    def preemptions(self) -> int:
        return self._batch.preemptions

    @property
    def pauses(self) -> int:
        return self._batch.pauses

    def report(self, now_s: float = 0.0) -> EngineReport:
        """What a real engine would report."""
        if self._run is None:
            self._set_limits(now_s)
        shape, batch = self.shape, self._batch
        return EngineReport(
            max_batch_size=self._announced,
            max_step_tokens=self.limits.max_step_tokens,
            most_batch_size=shape.slots,
            most_step_tokens=shape.step_tokens,
            total_blocks=shape.total_blocks,
            used_blocks=batch.used_blocks,
            tokens_per_block=shape.block_tokens,
            active=len(batch.members.running) + len(batch.members.waiting) + len(self._arrived),
            waiting=len(batch.members.waiting),
            paused=len(batch.members.paused),
            can_pause=True,
            holds_whole_answers=shape.holds_whole_answers,
            learned=None if self._cost is None else LearnedStepCost(self._cost, samples=1, error=0.0),
        )

    def add(self, request: SimulatedRequest, now_s: float) -> None:
        request.engine = self
        is_first = not self._arrived
        self._arrived.append(request)
        if self._run is None:
            self._begin(now_s)
            return
        if self._run.steps > 1 and self._batch.may_join(request):
            self._run.steps = min(self._run.steps, self._run.steps_by(now_s) + 1)
            self.next_s = self._run.began_s + self._run.took_s(self._run.steps)
        members = self._batch.members
        if is_first and not members.waiting and not members.is_full:
            self._is_awaited = now_s < self.next_s - self.shape.ahead_s

    def look(self, now_s: float) -> None:
        """Brings `steps_told`, by which its requests count their tokens, up to date."""
        if self._run is not None and self._run.decoding:
            self.steps_told = self._batch.step + self._run.steps_by(now_s)

    def finish(self) -> RunResult:
        """The run ends at `next_s`: who got a first token, who ended; and the next one begins."""
        assert self._run is not None
        run, now_s, told = self._run, self.next_s, RunResult()
        self.busy_s += now_s - run.began_s
        self._observe(run)
        if run.decoding:
            self._advance(run)
        while self._ends and self._ends[0][0] <= self._batch.step:
            request = heappop(self._ends)[2]
            if request.last_step == self._batch.step:  # else it was preempted meanwhile
                self._end(request, now_s, told)
        for request, count in run.chunks:
            request.computed_tokens += count
            if not request.lacking_tokens:
                self._tell_token_of_prompt(request, now_s, told)
        self._begin(now_s)
        return told

    def _advance(self, run: _Run) -> None:
        step_s = run.took_s(run.steps) / run.steps
        for tier, count in enumerate(self._batch.decoding):
            if count:
                self.gaps.add(tier, step_s, count * run.steps)
        self._batch.advance(run.steps)
        self.steps_told = self._batch.step
        self.decoded_steps += run.steps
        self.decoded_tokens += run.steps * run.decoding

    def _tell_token_of_prompt(self, request: SimulatedRequest, now_s: float, told: RunResult) -> None:
        if request.first_token_s is None:
            request.first_token_s = now_s
            told.first_tokens.append(request)
        else:  # it goes on after a preemption
            self.gaps.add(request.tier, now_s - request.last_token_s, 1)
        self._batch.begin_decoding(request)
        if request.last_step == self._batch.step:
            self._end(request, now_s, told)
        else:
            heappush(self._ends, (request.last_step, request.number, request))

    def _end(self, request: SimulatedRequest, now_s: float, told: RunResult) -> None:
        self._batch.end(request)
        request.ended_s = now_s
        request.engine = None
        told.ended.append(request)

    def _begin(self, now_s: float) -> None:
        """Plans the next run; none without requests."""
        batch, cost = self._batch, self.shape.cost
        if self.shape.depth == 1 or self._run is None:
            self._look_around()
        elif self._is_awaited:
            self._batch.add(self._arrived.pop(0))
        self._is_awaited = False
        chunks = self._plan(now_s)
        is_new = self._look_around()
        if not chunks and not sum(batch.decoding) and (is_new or batch.members.waiting):
            # As a real engine does: the plan before may have done nothing but take places back.
            chunks, is_new = self._plan(now_s), False
        decoding = sum(batch.decoding)
        if not decoding and not chunks:
            self._run, self.next_s = None, math.inf
            return
        even = self.shape.even_context
        prefill_tokens = sum(weight_of(request.computed_tokens, count, even) for request, count in chunks)
        kv_tokens = batch.decoding_kv_tokens + sum(request.computed_tokens for request, _ in chunks)
        slower = self.shape.slowness.at(now_s)
        step_ms = slower * cost.step_ms(StepShape(prefill_tokens, decoding, kv_tokens))
        growth_ms = slower * cost.kv_kilotoken_ms * decoding / 1000
        steps = 1 if batch.behind or (is_new and batch.members.waiting) else self._steps_alike()
        self._run = _Run(now_s, step_ms / 1000, growth_ms / 1000, steps, decoding, chunks)
        self.next_s = now_s + self._run.took_s(steps)

    def _look_around(self) -> bool:
        """Frees ended requests and takes arrivals; returns whether that can change the plan."""
        is_new = self._batch.let_go() or bool(self._arrived)
        for request in self._arrived:
            self._batch.add(request)
        self._arrived.clear()
        return is_new

    def _plan(self, now_s: float) -> Chunks:
        self._set_limits(now_s)
        limits = self.limits
        return self._batch.plan(limits.max_batch_size, limits.max_step_tokens, now_s, self._most_running)

    def _steps_alike(self) -> int:
        """Steps until the first request ends, or the cache might be full."""
        while self._ends[0][2].last_step != self._ends[0][0]:
            heappop(self._ends)
        steps = self._ends[0][0] - self._batch.step
        return steps if self.shape.holds_whole_answers else min(steps, self._batch.steps_until_full())

    @property
    def _cost(self) -> StepCost | None:
        """As far as the engine knows it."""
        shape = self.shape
        learned = shape.believed_cost or shape.cost
        if self._steps >= _UNKNOWN_STEPS:
            return learned
        return (shape.kept_cost or learned) if shape.is_cost_kept else None

    @property
    def _target_ms(self) -> float | None:
        here = [ms for tier, ms in self._targets_ms.items() if self._batch.present[tier]]
        if not here and not any(self._batch.present):
            here = list(self._targets_ms.values())
        return min(here, default=None)

    def _set_limits(self, now_s: float) -> None:
        if not self._targets_ms:
            return
        batch = self._batch
        lightest = batch.members.places.lightest()
        light = 0 if lightest is None else batch.members.places.held(lightest)
        load = StepLoad(
            sum(batch.decoding),
            batch.decoding_kv_tokens,
            self._target_ms,
            light,
            batch.members.places.tenants,
        )
        found = self._pace.limits(self._cost, load, now_s)
        self.limits, self._most_running, self._announced = found.steps, found.most_running, found.batch

    def _observe(self, run: _Run) -> None:
        self._steps += run.steps
        members = self._batch.members
        self.rows += run.steps * len(members.running)
        if members.paused:
            self.idle_rows += run.steps * max(self.limits.max_batch_size - len(members.running), 0)
        sequences = run.decoding + len(run.chunks)
        tokens = sum(count for _, count in run.chunks)
        self._pace.observe(
            sequences, tokens, 1000 * run.took_s(run.steps) / run.steps, self._target_ms, run.steps
        )
