"""Plays a trace: the router's own dispatcher admits the arrivals to simulated engines.

Time is that of the events. As in a router, the dispatcher is asked whose turn it is when a request arrives,
gets its first token or ends, when the engines report, and every 20 ms while requests wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from python_backend.wire.tiers import Tier
from router.admission.capacity import UNKNOWN, fitted, of_engines
from router.admission.demand import Demand, Need, Refused
from router.routing.replica_choice import home_of, home_or_other
from simulator.engine import SimulatedEngine
from simulator.gaps import Gaps
from simulator.policies import policy_of
from simulator.request import SimulatedRequest
from simulator.scenario import Admission

if TYPE_CHECKING:
    from loadtest.traces import Trace, TracedRequest
    from router.admission.demand import QueueEntry
    from simulator.scenario import Scenario

_TICK_S = 0.02
_REPORT_S = 1.0
_ARRIVES, _REACHES, _TICKS, _REPORTS = range(4)
_TIERS: dict[str | None, Tier] = {None: Tier.STANDARD, **{tier.label: tier for tier in Tier}}


@dataclass(frozen=True, slots=True)
class Moment:
    """What the signals said at one second of the simulation."""

    at_s: float
    waiting: int
    running: int
    drain_s: float | None
    risk: float


@dataclass(slots=True)
class Simulated:
    """Everything that became of a trace; `offered_s` is how long requests arrived."""

    requests: list[SimulatedRequest]
    offered_s: float
    ended_s: float
    gaps: Gaps
    engines: list[SimulatedEngine]
    moments: list[Moment] = field(default_factory=list)


def simulate(trace: Trace, scenario: Scenario) -> Simulated:
    return _Simulation(trace, scenario).play()


class _Simulation:
    def __init__(self, trace: Trace, scenario: Scenario) -> None:
        self._scenario = scenario
        self._offered_s = trace.duration_s
        self._shares_slots = scenario.admission.shares_slots
        self._engines = [
            SimulatedEngine(f"replica-{number}", scenario.shape, scenario.inter_token_ms)
            for number in range(scenario.replicas)
        ]
        self._policy = policy_of(scenario)
        self._patience_s = {tier: scenario.objective(tier).patience_s for tier in Tier}
        self._numbers = count()
        self._order = count()
        self._all: list[SimulatedRequest] = []
        self._capacity = UNKNOWN
        self._entries: dict[int, QueueEntry] = {}
        self._waiting = 0
        self._is_ticking = False
        self._now_s = 0.0
        self._moments: list[Moment] = []
        self._events: list[tuple[float, int, int, SimulatedRequest | None]] = [
            (each.at_s, next(self._order), _ARRIVES, request)
            for each, request in zip(trace.requests, self._asked(trace), strict=True)
        ]
        heapify(self._events)
        self._open = len(self._events)
        heappush(self._events, (0.0, -1, _REPORTS, None))

    def _asked(self, trace: Trace) -> Iterator[SimulatedRequest]:
        for each in trace.requests:
            yield self._new_request(each.at_s, each)

    def _new_request(self, at_s: float, each: TracedRequest) -> SimulatedRequest:
        return SimulatedRequest(
            number=next(self._numbers),
            at_s=at_s,
            tenant=each.tenant,
            tier=_TIERS[each.tier],
            prompt_tokens=each.prompt_tokens,
            output_tokens=each.output_tokens,
            max_tokens=max(each.max_tokens or 0, each.output_tokens),
            is_tier_told=self._scenario.tells_tiers,
            weight=self._scenario.weights.get(each.tenant, 1.0) if self._shares_slots else 0.0,
        )

    def play(self) -> Simulated:
        while self._open:
            engine = min(self._engines, key=_next_s)
            if engine.next_s <= self._events[0][0]:
                self._now_s = engine.next_s
                self._finish(engine)
            else:
                self._now_s, _, kind, request = heappop(self._events)
                self._happen(kind, request)
        gaps = Gaps()
        for engine in self._engines:
            gaps.merge(engine.gaps)
        return Simulated(self._all, self._offered_s, self._now_s, gaps, self._engines, self._moments)

    def _happen(self, kind: int, request: SimulatedRequest | None) -> None:
        if kind == _REACHES:
            assert request is not None
            assert request.engine is not None
            request.engine.add(request, self._now_s)
        elif kind == _ARRIVES:
            assert request is not None
            self._arrive(request)
        elif kind == _TICKS:
            self._is_ticking = False
            self._hand_on()
        else:
            self._report()

    def _arrive(self, request: SimulatedRequest) -> None:
        self._all.append(request)
        self._look()
        answer = self._policy.admit(self._demand(request), request, self._now_s)
        if isinstance(answer, Refused):
            self._refuse(request, answer)
            return
        self._entries[request.number] = answer
        if answer.is_running:
            self._send(request, answer)
        else:
            self._waiting += 1
            self._hand_on()

    def _demand(self, request: SimulatedRequest) -> Demand:
        is_known = self._scenario.admission is Admission.ORACLE
        most = request.output_tokens if is_known else request.max_tokens
        need = fitted(Need(request.prompt_tokens, most), self._capacity)
        return Demand(
            tenant=request.tenant,
            tier=request.tier,
            prompt_tokens=need.prompt_tokens,
            max_tokens=need.completion_tokens,
            sequences=need.sequences,
            arrived_s=self._now_s,
            deadline_s=self._now_s + self._patience_s[request.tier],
        )

    def _look(self) -> None:
        for engine in self._engines:
            engine.look(self._now_s)

    def _hand_on(self) -> None:
        self._look()
        for entry in self._policy.hand_on(self._now_s):
            request = entry.progress
            assert isinstance(request, SimulatedRequest)
            self._waiting -= 1
            if entry.refusal is not None:
                self._refuse(request, entry.refusal)
            else:
                self._send(request, entry)
        if self._waiting and not self._is_ticking:
            self._is_ticking = True
            self._at(self._now_s + _TICK_S, _TICKS, None)

    def _send(self, request: SimulatedRequest, entry: QueueEntry) -> None:
        """To the replica that the router would choose, which it reaches a little later."""
        engine = self._engines[0]
        if len(self._engines) > 1:
            engine = home_or_other(self._engines, self._home(request), request.prompt_tokens)
        engine.in_flight.add(request)
        engine.begun += 1
        request.engine, request.begun_s = engine, self._now_s
        request.forecast_late_s = entry.forecast_late_s
        if self._shares_slots:
            request.weight = entry.weight
        self._at(self._now_s + self._scenario.overhead_s, _REACHES, request)

    def _home(self, request: SimulatedRequest) -> SimulatedEngine:
        """Every prompt has an opening of its own."""
        homes = self._scenario.homes
        if request.number < len(homes):
            return self._engines[homes[request.number]]
        return home_of(self._engines, request.number.to_bytes(8, "little"))

    def _finish(self, engine: SimulatedEngine) -> None:
        told = engine.finish()
        for request in told.first_tokens:
            self._policy.first_token(self._entries[request.number], self._now_s)
        for request in told.ended:
            engine.in_flight.remove(request)
            self._policy.end(self._entries.pop(request.number), self._now_s)
            self._open -= 1
        if self._waiting and (told.first_tokens or told.ended):
            self._hand_on()

    def _refuse(self, request: SimulatedRequest, refused: Refused) -> None:
        request.refused, request.refused_s = refused.reason, self._now_s
        request.retry_after_s = refused.retry_after_s
        self._entries.pop(request.number, None)
        self._open -= 1
        retries = self._scenario.retries
        if request.attempt < retries.times:
            after_s = max(refused.retry_after_s or 0.0, 1.0) if retries.after_s is None else retries.after_s
            at_s = self._now_s + after_s
            self._open += 1
            self._at(at_s, _ARRIVES, self._again(request, at_s))

    def _again(self, request: SimulatedRequest, at_s: float) -> SimulatedRequest:
        return SimulatedRequest(
            number=next(self._numbers),
            at_s=at_s,
            tenant=request.tenant,
            tier=request.tier,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            max_tokens=request.max_tokens,
            attempt=request.attempt + 1,
            is_tier_told=request.is_tier_told,
            weight=request.weight,
        )

    def _report(self) -> None:
        """The engines say what they have, once a second, as they do to a router."""
        self._capacity = of_engines([engine.report(self._now_s) for engine in self._engines])
        self._look()
        self._policy.resize(self._capacity)
        signals = self._policy.signals(self._now_s)
        risk = max(signals.risk.values(), default=0.0)
        self._moments.append(Moment(self._now_s, self._waiting, signals.running, signals.drain_s, risk))
        self._hand_on()
        self._at(self._now_s + _REPORT_S, _REPORTS, None)

    def _at(self, at_s: float, kind: int, request: SimulatedRequest | None) -> None:
        heappush(self._events, (at_s, next(self._order), kind, request))


def _next_s(engine: SimulatedEngine) -> float:
    return engine.next_s
