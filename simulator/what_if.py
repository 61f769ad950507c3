"""What if: one trace under several ways to serve it, beside each other, as JSON from stdin to stdout.

A program of its own, `python -m simulator.what_if`, so that a router can have it computed beside itself.
Exit status: 0 the answer is on stdout, 2 the question cannot be used, and stderr says why.
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from loadtest.traces import Trace, TracedRequest, TraceError, parse_trace, synthetic_trace, tiers_by_chance
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier, tier_named
from router.core.objective import Objective
from simulator.engine import EngineShape
from simulator.report import figures_of
from simulator.scenario import MODEL, Admission, Scenario
from simulator.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simulator.simulation import Moment

EXIT_USAGE = 2
MOST_REQUESTS = 100_000
_MOST_MOMENTS = 240
_SYNTHETIC_S = 600.0
# Of the whole process: a question that takes longer, or more, is nobody's to wait for.
_CPU_LIMIT_S = 300
_MEMORY_LIMIT_BYTES = 4 << 30
_OF_CACHE = 0.9  # the longest request, of what the cache holds


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to serve the trace; seconds by tier and by what of an objective they are."""

    policy: str
    replicas: int = 1
    objectives: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ValueError, of which TraceError is one, for what cannot be used."""
    engine = _engine(question["engine"])
    trace = _trace(question["trace"], int(question.get("seed", 0)))
    trace = trace.clamp(max(int(_OF_CACHE * engine.kv_tokens), 2)).faster(float(question.get("rate", 1.0)))
    lasting_s = question.get("duration_s")
    rounds = 1.0 if lasting_s is None else float(lasting_s) / (trace.duration_s or 1.0)
    if (count := int(len(trace.requests) * max(rounds, 1.0))) > MOST_REQUESTS:
        raise TraceError(f"these are {count:,} requests; allowed: up to {MOST_REQUESTS:,}")
    if lasting_s is not None:
        trace = trace.lasting(float(lasting_s))
    variants = [_played(trace, engine, Variant(**each)) for each in question["variants"]]
    about = {"name": trace.name, "requests": len(trace.requests), "duration_s": trace.duration_s}
    return {"trace": {**about, "shortened": trace.clamped}, "variants": variants}


def _engine(given: Mapping[str, Any]) -> EngineShape:
    limits = {name: value for name, value in given.items() if name != "cost"}
    return EngineShape(StepCost(**given["cost"]), **limits)


def _trace(given: Mapping[str, Any], seed: int) -> Trace:
    if "rows" in given:
        rows = [TracedRequest(*row) for row in given["rows"]]
        if not rows:
            raise TraceError("no requests were recorded in that time")
        trace = Trace(str(given["name"]), tuple(rows))
    elif "text" in given:
        lines = str(given["text"]).splitlines()
        is_json = bool(lines) and lines[0].lstrip().startswith("{")
        trace = parse_trace(lines, str(given["name"]), "the trace", is_json=is_json)
    else:
        trace = synthetic_trace(seed, _SYNTHETIC_S)
    shares = given.get("tiers") or {Tier.STANDARD.label: 1.0}
    trace = trace.with_tiers(tiers_by_chance(shares, seed))
    for name in {each.tier for each in trace.requests}:
        tier_named(str(name))
    return trace


def _played(trace: Trace, engine: EngineShape, variant: Variant) -> dict[str, Any]:
    objectives = {
        tier_named(name): Objective(MODEL, tier_named(name), **terms)
        for name, terms in variant.objectives.items()
    }
    scenario = Scenario(engine, variant.replicas, Admission(variant.policy), objectives)
    simulated = simulate(trace, scenario)
    moments = [asdict(each) for each in _thinned(simulated.moments)]
    return {**asdict(variant), "figures": figures_of(simulated, scenario).to_json(), "moments": moments}


def _thinned(moments: Sequence[Moment]) -> Sequence[Moment]:
    stride = -(-len(moments) // _MOST_MOMENTS) or 1
    return moments[::stride]


def main() -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_LIMIT_S, _CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
    try:
        told = answer(json.load(sys.stdin))
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except MemoryError:
        print("this needs more memory than a simulation is allowed", file=sys.stderr)
        return EXIT_USAGE
    json.dump(told, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
