"""Whole rollouts in simulated time: requests that come by chance to a machine with good and bad hours."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from router.control.releases.arm_stats import ArmStats, Measured, Sample
from router.control.releases.canary import Decision, Verdict, decide
from router.control.releases.evidence import Proportion
from router.control.releases.paired_times import MOST_PAIRS, PairedTimes, Standing, standing_of_all
from router.control.releases.plan import Plan, Progress

BEGIN_S = 1_800_000_000.0
# Looked at each second as the router does, and after two minutes less often, which only saves time here.
_CLOSE_S, _SELDOM_S = 120, 5


@dataclass(frozen=True)
class Release:
    """How it differs from the best there could be."""

    errors: float = 0.0
    slower: float = 1.0  # both latencies
    slower_tokens: float = 1.0  # inter-token latency alone
    longer: float = 1.0
    refusals: float = 0.02


@dataclass(frozen=True)
class World:
    """`load` multiplies the latencies of both arms at a time; an arm may have slow phases of its own too."""

    rate: float = 20.0
    deviation: float = 0.4
    tail: float = 0.03  # share of requests that take several times as long
    load: Callable[[float], float] = lambda at_s: 1.0
    shared_phases: bool = False
    own_phases: bool = False
    outage: Callable[[float], bool] = lambda at_s: False


@dataclass
class Phases:
    """Three times as slow for about 10 s, then well for about 50."""

    chance: random.Random
    slow: bool = False
    until_s: float = 0.0

    def factor(self, at_s: float) -> float:
        while at_s >= self.until_s:
            self.slow = not self.slow if self.until_s else False
            self.until_s += self.chance.expovariate(1 / (10 if self.slow else 50))
        return 3.0 if self.slow else 1.0


@dataclass
class Rollout:
    """Told after each second what to do; `canary_requests` counts over all steps."""

    seed: int
    canary: Release
    stable: Release = field(default_factory=Release)
    world: World = field(default_factory=World)
    plan: Plan = field(default_factory=Plan)
    rehearsed: bool = False  # whether both releases are measured on the same prompts first
    past_requests: int = 0  # that the stable release was seen to answer, or not, before

    def run(self, most_s: float = 1200.0) -> tuple[Decision, int, float]:
        """How it ended, after how many of the canary's requests, and after how many seconds."""
        chance = random.Random(self.seed)
        if self.rehearsed and self._is_refused(chance):
            return Decision(Verdict.ROLL_BACK, "slower on the same prompts before it had any traffic"), 0, 0.0
        phases = [Phases(chance), Phases(chance), Phases(chance)]
        steps = [(ArmStats(), ArmStats())]
        progress, answered, at_s = Progress(step_began_s=BEGIN_S, golden_step=99), 0, 0.0
        past_errors = sum(chance.random() < self.stable.errors for _ in range(self.past_requests))
        past = Proportion(past_errors, self.past_requests)
        waiting: tuple[list[Sample], list[Sample]] = ([], [])
        for second in range(1, int(most_s) + 1):
            arms: tuple[list[Sample], list[Sample]] = ([], [])
            while at_s < second:
                is_canary = chance.random() < self.plan.weights[progress.step]
                release = self.canary if is_canary else self.stable
                factor = self.world.load(at_s)
                factor *= phases[2].factor(at_s) if self.world.shared_phases else 1.0
                factor *= phases[is_canary].factor(at_s) if self.world.own_phases else 1.0
                arms[not is_canary].append(self._sample(chance, release, factor, at_s))
                at_s += chance.expovariate(self.world.rate)
            answered += len(arms[0])
            waiting[0].extend(arms[0])
            waiting[1].extend(arms[1])
            if second > _CLOSE_S and second % _SELDOM_S:
                continue
            arms, waiting = waiting, ([], [])
            steps[-1] = (steps[-1][0].with_all(arms[0]), steps[-1][1].with_all(arms[1]))
            found = decide(self.plan, progress, Measured(tuple(steps), past), BEGIN_S + second)
            if found.verdict is Verdict.ADVANCE:
                progress = replace(progress, step=progress.step + 1, step_began_s=BEGIN_S + second)
                steps.append((ArmStats(), ArmStats()))
            elif found.verdict is not Verdict.WAIT:
                return found, answered, float(second)
        return found, answered, most_s

    def _is_refused(self, chance: random.Random) -> bool:
        """The rehearsal: pairs of times on equal prompts, which scatter half as much as requests do."""
        ratio = self.plan.tolerance.latency_ratio
        times = [PairedTimes(), PairedTimes()]
        slower = (self.canary.slower, self.canary.slower * self.canary.slower_tokens)
        for number in range(1, MOST_PAIRS + 1):
            times = [
                each.plus(self._rehearsal_s(chance) * factor, self._rehearsal_s(chance))
                for each, factor in zip(times, slower, strict=True)
            ]
            found = standing_of_all(times, ratio, is_last=number == MOST_PAIRS)
            if found is not Standing.OPEN:
                return found is Standing.SLOWER
        return False

    def _rehearsal_s(self, chance: random.Random) -> float:
        tail = math.exp(chance.expovariate(1.0)) if chance.random() < self.world.tail else 1.0
        return tail * chance.lognormvariate(0, self.world.deviation / 2)

    def _sample(self, chance: random.Random, release: Release, factor: float, at_s: float) -> Sample:
        if self.world.outage(at_s) or chance.random() < release.errors:
            return Sample(failed=True, at_s=BEGIN_S + at_s)
        if chance.random() < self.world.tail:
            factor *= math.exp(chance.expovariate(1.0))
        scale = factor * release.slower
        return Sample(
            False,
            0.1 * scale * chance.lognormvariate(0, self.world.deviation),
            0.02 * scale * release.slower_tokens * chance.lognormvariate(0, self.world.deviation * 0.75),
            max(1, int(120 * release.longer * chance.lognormvariate(0, 0.8))),
            chance.random() < release.refusals,
            BEGIN_S + at_s,
        )
