"""How rollouts end, simulated with the router's own decision code: `python -m benchmarks.rollouts`.

`python -m benchmarks.rollout_table` makes the documented table.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from router.control.releases.canary import Verdict
from router.control.releases.plan import Plan
from simulator.rollouts import Release, Rollout, World

RATES = (0.5, 3.0, 20.0, 200.0)
SLOWDOWNS = (1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
ERRORS = (0.0, 0.005, 0.01, 0.05)
# As an operator would choose them: the canary gets some requests a minute from the first step on.
STEPS = {0.5: (0.5, 1.0), 3.0: (0.2, 0.5, 1.0), 20.0: (0.05, 0.25, 1.0), 200.0: (0.01, 0.05, 0.25, 1.0)}
MACHINES = {
    "quiet": World(),
    # Heavy tails, load that comes and goes, and slow phases that both arms share.
    "noisy": World(
        deviation=0.6, tail=0.1, shared_phases=True, load=lambda at_s: 3.0 if 20 < at_s % 60 < 50 else 1.0
    ),
    # Each arm is now and then three times as slow for about 10 s, for no fault of its release.
    "own phases": World(own_phases=True),
}
LIMIT_S = {0.5: 4 * 3600.0, 3.0: 2 * 3600.0, 20.0: 3600.0, 200.0: 1200.0}


@dataclass(frozen=True)
class Cell:
    rate: float
    machine: str
    slower: float
    errors: float
    is_rehearsed: bool = True
    past_requests: int = 1000
    mirror_per_s: float = 0.0

    @property
    def plan(self) -> Plan:
        return Plan(weights=STEPS[self.rate], mirror_per_s=self.mirror_per_s)


@dataclass(frozen=True)
class Ended:
    """How one rollout ended: after so many requests of its canary, and so long."""

    verdict: str
    requests: int
    seconds: float


def run(cell: Cell, seed: int) -> Ended:
    world = replace(MACHINES[cell.machine], rate=cell.rate)
    release = Release(errors=cell.errors, slower=cell.slower)
    rollout = Rollout(
        seed,
        release,
        world=world,
        plan=cell.plan,
        rehearsed=cell.is_rehearsed,
        past_requests=cell.past_requests,
        is_close=cell.slower >= 1.5 or cell.errors > 0,
    )
    decision, requests, seconds = rollout.run(LIMIT_S[cell.rate])
    return Ended(decision.verdict.value, requests, seconds)


def several(job: tuple[Cell, range]) -> list[Ended]:
    cell, seeds = job
    return [run(cell, seed) for seed in seeds]


def cells(asked: Namespace) -> Iterator[Cell]:
    for rate in _numbers(asked.rates):
        for machine in asked.machines.split(","):
            for slower in _numbers(asked.slowdowns):
                for each in _numbers(asked.errors):
                    yield Cell(
                        rate, machine, slower, each, not asked.only_under_load, asked.past, asked.mirror
                    )


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def _text(numbers: Sequence[float]) -> str:
    return ",".join(f"{each:g}" for each in numbers)


def share(ended: Sequence[Ended], *verdicts: Verdict) -> float:
    named = {verdict.value for verdict in verdicts}
    return sum(each.verdict in named for each in ended) / len(ended)


def at(values: Sequence[float], quantile: float) -> float:
    return sorted(values)[min(int(len(values) * quantile), len(values) - 1)] if values else float("nan")


def row(cell: Cell, ended: Sequence[Ended]) -> str:
    """Markdown; requests and times of the median and of one in twenty."""
    requests, seconds = [each.requests for each in ended], [each.seconds for each in ended]
    shares = (share(ended, each) for each in (Verdict.PROMOTE, Verdict.ROLL_BACK, Verdict.WAIT))
    cells = [f"{cell.rate:g}", cell.machine, f"{cell.slower:g}", f"{cell.errors:.1%}"]
    cells += [f"{cell.mirror_per_s:g}"]
    cells += [f"{each:.1%}" for each in shares]
    cells += [f"{at(each, 0.5):,.0f} / {at(each, 0.95):,.0f}" for each in (requests, seconds)]
    return f"| {' | '.join(cells)} |"


COLUMNS = (
    "rate /s",
    "machine",
    "slower",
    "errors",
    "mirror /s",
    "promoted",
    "rolled back",
    "held",
    "requests",
    "seconds",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def main() -> None:
    parser = ArgumentParser(prog="benchmarks.rollouts", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rates", default=_text(RATES))
    parser.add_argument("--slowdowns", default=_text(SLOWDOWNS))
    parser.add_argument("--errors", default=_text(ERRORS))
    parser.add_argument("--only-under-load", action="store_true", help="slowness that shows only under load")
    parser.add_argument(
        "--past", type=int, default=1000, help="requests that the stable release has answered before"
    )
    parser.add_argument("--mirror", type=float, default=0.0, help="requests copied to the canary a second")
    parser.add_argument("--machines", default=",".join(MACHINES))
    asked = parser.parse_args()
    every = list(cells(asked))
    found: dict[Cell, list[Ended]] = {cell: [] for cell in every}
    part = max(asked.runs // 8, 1)
    jobs = [
        (cell, range(begin, min(begin + part, asked.runs)))
        for cell in sorted(every, key=lambda cell: -cell.rate)
        for begin in range(0, asked.runs, part)
    ]
    print(HEAD)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for number, (job, ended) in enumerate(zip(jobs, pool.map(several, jobs), strict=True), 1):
            found[job[0]] += ended
            if len(found[job[0]]) == asked.runs:
                print(row(job[0], found[job[0]]), flush=True)
            print(f"{number} of {len(jobs)}", end="\r", file=sys.stderr)


if __name__ == "__main__":
    main()
