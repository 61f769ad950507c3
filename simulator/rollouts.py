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
TOKENS, LENGTHS = 120, 0.8  # of answers, and how their logarithms scatter
# The router looks each second. Here the pauses grow with time, which only saves some: a rollout ends later by
# up to this part of its time.
_LATER = 0.03


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


class Steady:
    """Of one speed at all times."""

    def factor(self, at_s: float) -> float:
        return 1.0


@dataclass
class Arrivals:
    """Requests to both releases as they come by chance, and what each of them took."""

    chance: random.Random
    canary: Release
    stable: Release
    world: World
    mirror_per_s: float = 0.0
    at_s: float = 0.0
    met: int = 0  # requests of people that the canary got

    def __post_init__(self) -> None:
        self._next_copy_s = 0.0 if self.mirror_per_s else math.inf
        self._shared: Phases | Steady = Phases(self.chance) if self.world.shared_phases else Steady()
        self._own = [Phases(self.chance) if self.world.own_phases else Steady() for _ in range(2)]

    def until(self, second: int, weight: float) -> tuple[list[Sample], list[Sample]]:
        """Of the canary, copies among them, and of the stable release."""
        canary: list[Sample] = []
        stable: list[Sample] = []
        while self.at_s < second:
            factor = self.world.load(self.at_s) * self._shared.factor(self.at_s)
            if self.chance.random() < weight:
                self.met += 1
                canary.append(self._sample(self.canary, factor * self._own[0].factor(self.at_s)))
            elif self.at_s < self._next_copy_s:
                stable.append(self._sample(self.stable, factor * self._own[1].factor(self.at_s)))
            else:
                self._next_copy_s = self.at_s + 1 / self.mirror_per_s
                copy, original = self._pair(factor)
                canary.append(copy)
                stable.append(original)
            self.at_s += self.chance.expovariate(self.world.rate)
        return canary, stable

    def _pair(self, factor: float) -> tuple[Sample, Sample]:
        """A mirrored request: times on the same prompt scatter half as much, as in a rehearsal."""
        factor *= self.chance.lognormvariate(0, self.world.deviation * math.sqrt(3) / 2)
        tokens = TOKENS * self.chance.lognormvariate(0, LENGTHS * math.sqrt(3) / 2)
        copy, original = (
            replace(self._sample(release, factor * own.factor(self.at_s), tokens, 0.5), is_mirrored=True)
            for release, own in zip((self.canary, self.stable), self._own, strict=True)
        )
        return replace(copy, original=original), original

    def _sample(
        self, release: Release, factor: float, tokens: float = TOKENS, scatter: float = 1.0
    ) -> Sample:
        chance, at_s, deviation = self.chance, BEGIN_S + self.at_s, self.world.deviation * scatter
        if self.world.outage(self.at_s) or chance.random() < release.errors:
            return Sample(failed=True, at_s=at_s)
        if chance.random() < self.world.tail:
            factor *= math.exp(chance.expovariate(1.0))
        scale = factor * release.slower
        return Sample(
            False,
            0.1 * scale * chance.lognormvariate(0, deviation),
            0.02 * scale * release.slower_tokens * chance.lognormvariate(0, deviation * 0.75),
            max(1, int(tokens * release.longer * chance.lognormvariate(0, LENGTHS * scatter))),
            chance.random() < release.refusals,
            at_s,
        )


@dataclass
class Rollout:
    """Told after each second what to do."""

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
        past_errors = sum(chance.random() < self.stable.errors for _ in range(self.past_requests))
        past = Proportion(past_errors, self.past_requests)
        arrivals = Arrivals(chance, self.canary, self.stable, self.world, self.plan.mirror_per_s)
        steps = [(ArmStats(), ArmStats())]
        progress = Progress(step_began_s=BEGIN_S, golden_step=99)
        second = 0
        while second < int(most_s):
            second = min(second + max(1, int(second * _LATER)), int(most_s))
            arms = arrivals.until(second, self.plan.weights[progress.step])
            steps[-1] = (steps[-1][0].with_all(arms[0]), steps[-1][1].with_all(arms[1]))
            found = decide(self.plan, progress, Measured(tuple(steps), past), BEGIN_S + second)
            if found.verdict is Verdict.ADVANCE:
                progress = replace(progress, step=progress.step + 1, step_began_s=BEGIN_S + second)
                steps.append((ArmStats(), ArmStats()))
            elif found.verdict is not Verdict.WAIT:
                return found, arrivals.met, float(second)
        return found, arrivals.met, most_s

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
