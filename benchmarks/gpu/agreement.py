"""`python -m benchmarks.gpu.agreement --keep FILE`: runs of an 8B model to hold the simulators against.

Generated requests of many lengths teach what steps cost. Those of --trace are then sent at three loads, at
random moments, and those of --overload at 0.8, 2 and 10 times the capacity. Everything that was sent and seen
is kept after each run; nothing is simulated meanwhile. Elsewhere `--replay FILE` foretells it, and says how
far that is off.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.gpu.llama_8b import write_checkpoint
from benchmarks.gpu.objectives import (
    ENGINE,
    OVERLOAD_FACTORS,
    OVERLOAD_FIRST_TOKEN_S,
    OVERLOAD_INTER_TOKEN_S,
    PARAMETERS,
)
from benchmarks.objectives import arena
from benchmarks.objectives.agreement import compare, show
from benchmarks.objectives.arena import arrivals, objectives_of, paced
from benchmarks.objectives.arrivals import at_rate, in_tiers
from benchmarks.objectives.fleet_accuracy import record_loads
from benchmarks.objectives.serving import Setup, serving
from benchmarks.objectives.session import Part, Recorder, Session, keep, overhead_s, read
from benchmarks.objectives.step_fit import step_cost
from benchmarks.objectives.step_times import by_other_runs
from loadtest.traces import Shape, Trace, synthetic_trace, tiers_by_chance
from python_backend.wire.tiers import Tier

CONTEXT_TOKENS = 4096
TEACHING_SECONDS = 12.0
# Prompts and answers short and long, so that each coefficient has something to be learned from.
TEACHING = Shape(
    tenants=5,
    prompt_median_tokens=400.0,
    prompt_spread=1.3,
    output_median_tokens=120.0,
    output_spread=1.0,
    longest_tokens=3000,
)
CROWD = Shape(
    tenants=5,
    prompt_median_tokens=100.0,
    prompt_spread=1.0,
    output_median_tokens=120.0,
    output_spread=0.8,
    longest_tokens=1000,
)
TRIED = Shape(tenants=9, prompt_median_tokens=900.0, prompt_spread=0.9, longest_tokens=CONTEXT_TOKENS)
_TENANTS, _TIERS = 5, {"interactive": 60.0, "standard": 30.0, "batch": 10.0}


def in_mixed_tiers(trace: Trace) -> Trace:
    """Requests of nobody are those of some tenants in turn."""
    of_somebody = tuple(
        replace(each, tenant=each.tenant or f"t{number % _TENANTS}")
        for number, each in enumerate(trace.requests)
    )
    return replace(trace, requests=of_somebody).with_tiers(tiers_by_chance(_TIERS, seed=1))


def tried(path: Path | None) -> Trace:
    """Not what taught, nor like it."""
    trace = synthetic_trace(2, 600.0, TRIED) if path is None else arrivals(path)
    return in_mixed_tiers(trace.clamp(CONTEXT_TOKENS))


def record_overload(recorder: Recorder, trace: Trace, seconds: float, kept: Path) -> None:
    session = recorder.session
    assert session.cost is not None
    capacity = session.capacity_per_s(trace, session.cost)
    for times in OVERLOAD_FACTORS:
        requests = at_rate(trace, times * capacity, seconds).requests
        recorder.send(f"{times:g}x", requests, (0.0, seconds), Part.OVERLOAD)
        keep(kept, session)


def record(asked: argparse.Namespace, console: Console) -> Session:
    taught = in_mixed_tiers(synthetic_trace(1, 600.0, TEACHING).clamp(CONTEXT_TOKENS))
    crowd = in_mixed_tiers(synthetic_trace(3, 600.0, CROWD))
    loads, overload = tried(asked.trace), in_tiers(arrivals(asked.overload).clamp(CONTEXT_TOKENS))
    engine = arena.ENGINE if asked.paced else ENGINE
    with tempfile.TemporaryDirectory() as folder:
        if asked.paced:
            setup = Setup(paced(arena.COST, engine), embeddings=False)
        else:
            model, data_dir = write_checkpoint(Path(folder) / "llama-8b"), Path(folder) / "data"
            setup = Setup(PARAMETERS, str(model), data_dir, embeddings=False)
        with serving(setup, [*taught.tenants, *crowd.tenants, *loads.tenants, *overload.tenants]) as served:
            objectives = objectives_of(
                served.model,
                dict.fromkeys(Tier, OVERLOAD_FIRST_TOKEN_S),
                dict.fromkeys(Tier, OVERLOAD_INTER_TOKEN_S),
            )
            served.set_objectives(objectives)
            session = Session(engine, objectives)
            recorder = Recorder(served, session, asked.clients)
            with recorder.sampling():
                recorder.learn(taught, TEACHING_SECONDS, crowd)
                keep(asked.keep, session)
                record_overload(recorder, overload, asked.overload_seconds, asked.keep)
                assert session.cost is not None
                capacity = session.capacity_per_s(loads, session.cost)
                record_loads(recorder, loads, capacity, asked.loads, asked.seconds, asked.keep)
    for run in session.runs:
        console.print(f"{run.name}: {len(run.results)} requests from {run.began_s:.0f} s on, {run.cost}")
    return session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="where to write what was sent and measured, as JSON")
    parser.add_argument("--replay", type=Path, help="predict the runs in such a file, and measure nothing")
    parser.add_argument("--trace", type=Path, help="requests for the three loads; generated without it")
    parser.add_argument("--overload", type=Path, help="requests for the overload; generated without it")
    parser.add_argument("--loads", type=_numbers, default=[0.4, 0.65, 0.9], help="in capacities")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each load")
    parser.add_argument("--overload-seconds", type=float, default=15.0, help="of each overload")
    parser.add_argument("--clients", type=int, default=4, help="processes that send")
    parser.add_argument("--paced", action="store_true", help="without a GPU: an engine that only sleeps")
    asked = parser.parse_args()
    if (asked.keep is None) == (asked.replay is None):
        parser.error("either --keep FILE or --replay FILE")
    console = Console(width=170)
    if asked.keep:
        record(asked, console)
    else:
        session = read(asked.replay)
        console.print(f"learned: {session.cost}")
        for part in (Part.OVERLOAD, Part.LOADS):
            console.print(f"for {part.value}: {step_cost(session, part)}")
        console.print(f"{1000 * overhead_s(session):.1f} ms around the engine")
        sys.exit(not show(list(compare(session, by_other_runs)), console))


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
