"""`python -m benchmarks.objectives.fleet_accuracy`: what the simulators foretell, beside two servers.

Half of a trace teaches: the engines learn what their steps cost while it is sent; what a request takes beside
them is seen at half a load, and what they can do at a whole one. The other half is then sent at several
loads, at random moments, and held against the forecast for just that, by what the steps of each run took.
Goodput, the medians of the first token and of the time between tokens are to be within a tenth of it, their
95th percentiles within 15 %.
--real-model has the default model answer on the processors; without it engines take the time that a cost
says, and only what is around them is tried. --replay foretells what was kept of an earlier run, and measures
nothing.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from rich.console import Console

from benchmarks.objectives.agreement import compare, show
from benchmarks.objectives.arena import (
    COST,
    ENGINE,
    FIRST_TOKEN_S,
    INTER_TOKEN_S,
    arrivals,
    objectives_of,
    paced,
    sized,
)
from benchmarks.objectives.arrivals import in_tiers, shorter
from benchmarks.objectives.prediction import Engine
from benchmarks.objectives.serving import Setup, serving
from benchmarks.objectives.session import (
    TEACHES,
    Part,
    Recorder,
    Session,
    answered_per_s,
    keep,
    overhead_s,
    read,
    stolen_shares,
)
from benchmarks.objectives.step_times import by_the_run
from loadtest.traces import Trace, TracedRequest

# How many guessed tokens come true depends on the text, and prompts of random tokens are no text.
_PLAIN_STEPS = {"inflight_speculation": "false"}
# A core answers few requests of usual lengths in minutes, and of few no percentile can be told.
_TIMES_SHORTER = 4
SMALL = Engine(places=8, kv_tokens=8192, step_tokens=256, depth=1)


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """Every other request: of the same kind, and none of them twice."""
    return replace(trace, requests=trace.requests[::2]), replace(trace, requests=trace.requests[1::2])


def at_random(trace: Trace, per_s: float, seconds: float, seed: int) -> list[TracedRequest]:
    chance = random.Random(seed)
    plan, at_s = [], chance.expovariate(per_s)
    while at_s < seconds:
        plan.append(replace(chance.choice(trace.requests), at_s=at_s))
        at_s += chance.expovariate(per_s)
    return plan


def record_loads(
    recorder: Recorder, trace: Trace, capacity: float, loads: list[float], seconds: float, kept: Path | None
) -> None:
    """Parts of the capacity, at random moments; of each, the first sixth is left out of what is judged."""
    for load in loads:
        plan = at_random(trace, load * capacity, seconds, seed=int(100 * load))
        recorder.send(f"{load:g}x", plan, (seconds / 6, seconds), Part.LOADS)
        if kept:
            keep(kept, recorder.session)


def record(asked: argparse.Namespace) -> Session:
    trace = in_tiers(arrivals(asked.trace).clamp(asked.context))
    trace = shorter(trace, _TIMES_SHORTER) if asked.real_model else trace
    taught, tried = halves(trace)
    engine = SMALL if asked.real_model else ENGINE
    between_s = {tier: (4 if asked.real_model else 1) * each for tier, each in INTER_TOKEN_S.items()}
    parameters = {**sized(engine), **_PLAIN_STEPS} if asked.real_model else paced(COST, engine)
    setup = Setup(parameters, embeddings=False, triton_servers=asked.servers)
    with serving(setup, trace.tenants) as served:
        session = Session(engine, objectives_of(served.model, FIRST_TOKEN_S, between_s), asked.servers)
        served.set_objectives(session.objectives)
        recorder = Recorder(served, session, asked.clients)
        with recorder.sampling():
            recorder.learn(taught, asked.seconds / 6)
            loads = list(map(float, asked.loads.split(",")))
            record_loads(recorder, tried, answered_per_s(session, tried), loads, asked.seconds, asked.keep)
    return session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a file of arrivals; generated if none is given")
    parser.add_argument("--context", type=int, default=2048, help="longer requests are shortened")
    parser.add_argument(
        "--loads", default="0.4,0.65,0.85", help="loads, as fractions of the highest rate that is answered"
    )
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="of each load; half of it is used to learn"
    )
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--real-model", action="store_true", help="the default model instead of a paced one")
    parser.add_argument("--clients", type=int, default=1, help="processes that send")
    parser.add_argument("--keep", type=Path, help="where to write the measurements, as JSON")
    parser.add_argument("--replay", type=Path, help="predict the runs in such a file, and measure nothing")
    asked = parser.parse_args()
    console = Console(width=170)
    session = read(asked.replay) if asked.replay else record(asked)
    is_met = show(list(compare(session, by_the_run)), console)
    console.print(f"{1000 * overhead_s(session, TEACHES):.0f} ms around the engine")
    for run in session.runs:
        if run.part is Part.LOADS and (shares := stolen_shares(session, run)):
            told = f"{100 * fmean(shares):.0f} %, in the worst five seconds {100 * max(shares):.0f} %"
            console.print(f"{run.name}: of the processors' time, the host gave others {told}")
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
