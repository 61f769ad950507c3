"""What `inflight simulate` foretells of a plan, beside what came."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.objectives.arrivals import write_trace
from benchmarks.objectives.judging import Objectives, is_good
from benchmarks.objectives.scenarios import Policy, Run
from loadtest.percentiles import percentile
from loadtest.results import RequestResult
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier

GOAL = 0.2


@dataclass(frozen=True)
class Engine:
    """What the simulator has to know of an engine beside its cost; `depth` is that of a GPU, or paced."""

    places: int
    kv_tokens: int
    step_tokens: int
    block_tokens: int = 16
    depth: int = 2
    even_context: int | None = None


@dataclass(frozen=True)
class Compared:
    """Goodput over all arrivals, and the p95 of the first tokens of each tier."""

    goodput_per_s: float
    foretold_goodput_per_s: float
    first_token_p95_s: Mapping[str, float | None]
    foretold_first_token_p95_s: Mapping[str, float | None]

    @property
    def goodput_error(self) -> float:
        return abs(self.foretold_goodput_per_s / max(self.goodput_per_s, 1e-9) - 1)

    @property
    def first_token_errors(self) -> dict[str, float]:
        """Of tiers with a first token here and there."""
        found = {}
        for tier, seen_s in self.first_token_p95_s.items():
            foretold_s = self.foretold_first_token_p95_s.get(tier)
            if seen_s and foretold_s:
                found[tier] = abs(foretold_s / seen_s - 1)
        return found


def foretell(
    run: Run, policy: Policy, objectives: Objectives, cost: StepCost, engine: Engine, overhead_s: float
) -> dict[str, Any]:
    """The figures of the simulator, for a policy that it knows."""
    assert policy.simulated is not None
    with tempfile.TemporaryDirectory() as folder:
        requests = run.plan.requests
        trace = write_trace(requests, Path(folder) / "plan.csv")
        command = [sys.executable, "-m", "launcher", "simulate", "--trace", str(trace)]
        command += [*_slo_options(objectives), "--cost", ",".join(f"{each:g}" for each in _numbers(cost))]
        command += ["--policy", policy.simulated, "--json"]
        command += ["--places", str(engine.places), "--kv-tokens", str(engine.kv_tokens)]
        command += ["--overhead", f"{1000 * overhead_s:.1f}ms"]
        command += ["--step-tokens", str(engine.step_tokens), "--block-tokens", str(engine.block_tokens)]
        command += ["--depth", str(engine.depth)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"inflight simulate: {done.stderr or done.stdout}")
    figures: dict[str, Any]
    (figures,) = json.loads(done.stdout)
    return figures


def _slo_options(objectives: Objectives) -> list[str]:
    words = []
    for tier, objective in objectives.items():
        parts = {"ttft": objective.first_token_s, "itl": objective.inter_token_s}
        told = [f"{name}:{value:g}s" for name, value in parts.items() if value is not None]
        words += ["--slo", f"{tier}={','.join(told)}"]
    return words


def _numbers(cost: StepCost) -> tuple[float, ...]:
    return (cost.base_ms, cost.prefill_token_ms, cost.decode_sequence_ms, cost.kv_kilotoken_ms)


def compare(
    outcomes: Sequence[RequestResult], objectives: Objectives, foretold: Mapping[str, Any]
) -> Compared:
    span_s = max(each.at_s for each in outcomes)
    return Compared(
        sum(is_good(each, objectives) for each in outcomes) / span_s,
        foretold["goodput_per_s"],
        {tier.label: _p95_s([each for each in outcomes if each.tier == tier.label]) for tier in Tier},
        {each["tier"]: each["first_token_p95_s"] for each in foretold["tiers"]},
    )


def _p95_s(outcomes: Sequence[RequestResult]) -> float | None:
    """None where many gave up: how long they would have waited was not seen."""
    firsts = sorted(each.first_token_s for each in outcomes if each.first_token_s is not None)
    left = sum(each.has_left and each.first_token_s is None for each in outcomes)
    return percentile(firsts, 0.95) if firsts and left <= 0.01 * len(outcomes) else None
