"""What both simulators foretell of the runs of a session, beside what came.

The detailed one plays the whole session: what was sent before a run has taught the router's forecasts there,
too, and its engine believes of its steps what the real one had learned. The fleet simulator plays
one run after the other. Neither is told what became of a run but for what its steps took, where the caller
wants that.

Where a queue forms, a millisecond decides who waits, and no request arrives to the millisecond when it was
meant to. So a session is replayed several times, with moments a little later; the median is the forecast.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil
from multiprocessing import get_context
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.objectives.judging import Objectives, is_good
from benchmarks.objectives.session import GRACE_S, Part, SentRun, Session, trace_of
from benchmarks.objectives.step_times import StepTimes
from loadtest.percentiles import percentile
from loadtest.results import RequestResult
from loadtest.traces import Trace
from python_backend.wire.tiers import tier_named
from simulator.engine import EngineShape
from simulator.fleet.cell import PERIOD_S
from simulator.fleet.fleet import FleetPlan, FleetPlayed, play_fleet
from simulator.fleet.state import BIN_FACTOR, FIRST_BIN_S, ReplicaShape
from simulator.planning.proof import lengths_of
from simulator.request import SimulatedRequest
from simulator.scenario import Scenario
from simulator.simulation import simulate

GOALS = {
    "good_per_s": 0.1,
    "first_p50_s": 0.1,
    "between_p50_s": 0.1,
    "first_p95_s": 0.15,
    "between_p95_s": 0.15,
}
OVERLOAD_GOALS = {"good_per_s": 0.1}
FIRST, BETWEEN = 0, 1
_REPLAYS = 9
_LATER_S = 0.004  # at most: twice what the 95th percentile of requests is sent late
_REFUSED, _OK = 503, 200


@dataclass(frozen=True)
class Seen:
    """Of all tiers together."""

    good_per_s: float
    first_p50_s: float
    first_p95_s: float
    between_p50_s: float
    between_p95_s: float


@dataclass(frozen=True)
class Compared:
    """One run by one simulator; `late_sent_s` is how far behind the sender was, at the 95th percentile."""

    run: str
    simulator: str
    offered_per_s: float
    measured: Seen
    foretold: Seen
    goals: dict[str, float]
    late_sent_s: float = 0.0

    def errors(self) -> dict[str, float]:
        was, said = asdict(self.measured), asdict(self.foretold)
        return {name: abs(said[name] / max(was[name], 1e-9) - 1) for name in GOALS}

    @property
    def is_met(self) -> bool:
        return all(error <= self.goals.get(name, error) for name, error in self.errors().items())


TimesOf = Callable[[Session, SentRun], StepTimes]


def compare(session: Session, times_of: TimesOf) -> Iterator[Compared]:
    """The forecasts are medians of replays."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        replays = list(pool.map(partial(_replayed, session, times_of), range(_REPLAYS)))
    yield from medians(replays)


def medians(replays: Sequence[Sequence[Compared]]) -> Iterator[Compared]:
    for same in zip(*replays, strict=True):
        figures = zip(*(asdict(each.foretold).values() for each in same), strict=True)
        yield replace(same[0], foretold=Seen(*map(median, figures)))


def moved(session: Session, seed: int) -> Session:
    """The first replay has every request at its moment, the others up to so much later."""
    if not seed:
        return session
    chance = random.Random(seed)

    def later(run: SentRun) -> SentRun:
        results = [replace(each, at_s=each.at_s + chance.uniform(0.0, _LATER_S)) for each in run.results]
        return replace(run, results=sorted(results, key=lambda each: each.at_s))

    return replace(session, runs=[later(run) for run in session.runs])


def _replayed(session: Session, times_of: TimesOf, seed: int) -> list[Compared]:
    return list(_one_replay(moved(session, seed), times_of))


def _one_replay(session: Session, times_of: TimesOf) -> Iterator[Compared]:
    """Of overloads, where most are refused, the goodput has a goal; and the fleet simulator has no pauses."""
    for part, goals in ((Part.OVERLOAD, OVERLOAD_GOALS), (Part.LOADS, GOALS)):
        for run, foretold in by_detailed(session, part, times_of):
            per_s, measured = offered_per_s(run), seen_in(run, session.objectives)
            late_s = percentile(sorted(each.sent_s for each in run.results), 0.95)
            said = seen_in(foretold, session.objectives)
            yield Compared(run.name, "detailed", per_s, measured, said, goals, late_s)
            if part is Part.LOADS:
                fleet = by_fleet(session, run, per_s, times_of(session, run))
                yield Compared(run.name, "fleet", per_s, measured, fleet, goals, late_s)


def by_detailed(session: Session, part: Part, times_of: TimesOf) -> Iterator[tuple[SentRun, SentRun]]:
    """The runs of a part, each with what the simulator makes of its requests."""
    played_with: dict[StepTimes, list[SimulatedRequest]] = {}
    first = 0
    for run in session.runs:
        last = first + len(run.results)
        if run.part is part:
            times = times_of(session, run)
            if times not in played_with:
                played_with[times] = _played(session, times)
            mine = played_with[times][first:last]
            yield run, replace(run, results=[as_result(each, run.began_s) for each in mine])
        first = last


def _played(session: Session, times: StepTimes) -> list[SimulatedRequest]:
    """All that was sent, in its order."""
    engine = session.engine
    shape = EngineShape(
        times.taken,
        engine.places,
        engine.step_tokens,
        engine.kv_tokens,
        engine.block_tokens,
        depth=engine.depth,
        believed_cost=times.believed,
        even_context=engine.even_context,
        slowness=times.slowness,
    )
    objectives = {tier_named(tier): each for tier, each in session.objectives.items()}
    homes = [home for run in session.runs for home in run.homes]
    scenario = Scenario(shape, session.servers, objectives=objectives, overhead_s=times.around_s, homes=homes)
    return sorted(simulate(trace_of(session), scenario).requests, key=lambda each: each.number)


def as_result(request: SimulatedRequest, began_s: float) -> RequestResult:
    """As its client would have seen it."""
    result = RequestResult(
        "trace",
        request.at_s - began_s,
        request.tenant,
        request.tier.label,
        status=_OK if request.refused is None else _REFUSED,
        prompt_tokens=request.prompt_tokens,
        asked_tokens=request.output_tokens,
    )
    if request.refused is not None:
        result.retry_after_s, result.ended_s = request.retry_after_s or 0.0, request.refused_s - request.at_s
    if request.first_token_s is not None and request.ended_s is not None:
        result.first_token_s = request.first_token_s - request.at_s
        result.ended_s = request.ended_s - request.at_s
        result.completion_tokens = request.output_tokens
        if request.output_tokens > 1:
            result.gaps_s = [(request.ended_s - request.first_token_s) / (request.output_tokens - 1)]
    return result


def by_fleet(session: Session, run: SentRun, per_s: float, times: StepTimes) -> Seen:
    engine, lengths = session.engine, lengths_of(Trace("run", tuple(run.requests)))
    lengths["home"] = run.homes or -1
    plan = FleetPlan(
        ReplicaShape(
            times.taken,
            engine.places,
            engine.step_tokens,
            engine.kv_tokens,
            depth=engine.depth,
            even_context=engine.even_context,
            slowness=times.slowness.since(run.began_s),
        ),
        {tier_named(tier): each for tier, each in session.objectives.items()},
        lengths,
        [per_s] * ceil((run.window_s[1] + GRACE_S) / PERIOD_S),
        session.servers,
        routers=1,
        overhead_s=times.around_s,
        is_traced=True,
        counted_from_s=run.window_s[0],
    )
    played = play_fleet(plan)
    shares = [of_times(played, which, share) for which in (FIRST, BETWEEN) for share in (0.5, 0.95)]
    return Seen(played.share("good") * per_s, *shares)


def of_times(played: FleetPlayed, times: int, share: float) -> float:
    """Of all tiers, between the edges of its bin."""
    sums = np.cumsum(played.times[times].sum(axis=0))
    wanted = share * sums[-1]
    number = int(np.searchsorted(sums, wanted))
    before = float(sums[number - 1]) if number else 0.0
    part = (wanted - before) / max(float(sums[number]) - before, 1e-9)
    return float(FIRST_BIN_S * BIN_FACTOR ** (number - 1 + part))


def _arrived(run: SentRun) -> list[RequestResult]:
    begin_s, end_s = run.window_s
    return [each for each in run.results if begin_s <= each.at_s < end_s]


def offered_per_s(run: SentRun) -> float:
    return len(_arrived(run)) / (run.window_s[1] - run.window_s[0])


def seen_in(run: SentRun, objectives: Objectives) -> Seen:
    mine, (begin_s, end_s) = _arrived(run), run.window_s
    firsts = sorted(each.first_token_s for each in mine if each.first_token_s is not None)
    between = sorted(each.between_tokens_s for each in mine if each.between_tokens_s is not None)
    good = sum(is_good(each, objectives) for each in mine) / (end_s - begin_s)
    return Seen(good, *(percentile(each, share) for each in (firsts, between) for share in (0.5, 0.95)))


def show(found: Sequence[Compared], console: Console) -> bool:
    table = Table("run", "simulator", "offered", *GOALS, "sent late")
    for each in found:
        errors, was, said = each.errors(), asdict(each.measured), asdict(each.foretold)
        cells = []
        for name in GOALS:
            is_missed = errors[name] > each.goals.get(name, errors[name])
            told = f"{was[name]:.3g} / {said[name]:.3g}: {100 * errors[name]:.0f} %"
            cells.append(f"{told}{' !' if is_missed else ''}")
        late = f"{1000 * each.late_sent_s:.0f} ms"
        table.add_row(each.run, each.simulator, f"{each.offered_per_s:.2f}/s", *cells, late)
    console.print("measured / predicted: error; ! misses its goal (10 %, for a p95 15 %)", table)
    return all(each.is_met for each in found)
