"""Whole rollouts in simulated time: requests that come by chance to a machine with good and bad hours."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from router.control.releases.arm_stats import ArmStats, Measured, merge_stats
from router.control.releases.canary import Decision, Verdict, decide
from router.control.releases.evidence import Proportion
from router.control.releases.paired_times import MOST_PAIRS, PairedTimes, Standing, standing_of_all
from router.control.releases.plan import Plan, Progress
from simulator.rollout_requests import Flags, Numbers, Phases, Requests, counted, counted_pairs, each

BEGIN_S = 1_800_000_000.0
TOKENS, LENGTHS = 120, 0.8  # of answers, and how their logarithms scatter
# The router looks each second. Here the pauses grow with time, which only saves some: a rollout ends later by
# up to this part of its time; or, where its canary's requests are what matters, by so many of them or that
# part of those.
_LATER, _CLOSE, _CLOSER = 0.1, 3, 0.04


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


class Steady:
    """Of one speed at all times."""

    def factors(self, at_s: Numbers) -> Numbers:
        return np.ones(len(at_s))


@dataclass
class Arrivals:
    """Requests to both releases as they come by chance, and what each of them took."""

    chance: np.random.Generator
    canary: Release
    stable: Release
    world: World
    most_s: float
    mirror_per_s: float = 0.0
    at_s: float = 0.0
    met: int = 0  # requests of people that the canary got

    def __post_init__(self) -> None:
        def phases(are_there: bool) -> Phases | Steady:
            return Phases(self.chance, self.most_s) if are_there else Steady()

        self._next_copy_s = 0.0 if self.mirror_per_s else math.inf
        self._shared = phases(self.world.shared_phases)
        self._own = [phases(self.world.own_phases) for _ in range(2)]

    def until(self, second: float, weight: float, length_s: int) -> tuple[ArmStats, ArmStats]:
        """What is counted of the canary, copies among it, and of the stable release."""
        span_s, began_s = second - self.at_s, self.at_s
        count = self.chance.poisson(self.world.rate * span_s)
        at_s, self.at_s = np.sort(began_s + span_s * self.chance.random(count)), second
        is_canarys = self.chance.random(count) < weight
        is_copied = self._copied(at_s, is_canarys)
        self.met += int(is_canarys.sum())
        canary, stable = (
            counted(self._requests(number, at_s[chosen]), length_s)
            for number, chosen in enumerate((is_canarys, ~is_canarys & ~is_copied))
        )
        if not is_copied.any():
            return canary, stable
        copies, originals = counted_pairs(*self._pairs(at_s[is_copied]), length_s)
        return merge_stats(canary, copies), merge_stats(stable, originals)

    def _copied(self, at_s: Numbers, is_canarys: Flags) -> Flags:
        """Not those that come too soon after the last one."""
        copied = np.zeros(len(at_s), dtype=np.bool_)
        if math.isinf(self._next_copy_s):
            return copied
        for place in np.flatnonzero(~is_canarys):
            if at_s[place] >= self._next_copy_s:
                copied[place] = True
                self._next_copy_s = at_s[place] + 1 / self.mirror_per_s
        return copied

    def _pairs(self, at_s: Numbers) -> tuple[Requests, Requests]:
        """Mirrored requests: times on the same prompt scatter half as much, as in a rehearsal."""
        same = self.chance.lognormal(0, self.world.deviation * math.sqrt(3) / 2, len(at_s))
        tokens = TOKENS * self.chance.lognormal(0, LENGTHS * math.sqrt(3) / 2, len(at_s))
        copies, originals = (self._requests(number, at_s, same, tokens, 0.5) for number in range(2))
        return copies, originals

    def _requests(
        self,
        number: int,
        at_s: Numbers,
        same: Numbers | float = 1.0,
        tokens: Numbers | float = TOKENS,
        scatter: float = 1.0,
    ) -> Requests:
        chance, world, count = self.chance, self.world, len(at_s)
        release, deviation = (self.canary, self.stable)[number], world.deviation * scatter
        factors = each(world.load, at_s) * self._shared.factors(at_s) * self._own[number].factors(at_s)
        tails = np.where(chance.random(count) < world.tail, np.exp(chance.exponential(1.0, count)), 1.0)
        scale = same * factors * tails * release.slower
        lengths = tokens * release.longer * chance.lognormal(0, LENGTHS * scatter, count)
        return Requests(
            BEGIN_S + at_s,
            (chance.random(count) < release.errors) | (each(world.outage, at_s) > 0),
            0.1 * scale * chance.lognormal(0, deviation, count),
            0.02 * scale * release.slower_tokens * chance.lognormal(0, deviation * 0.75, count),
            np.maximum(1, np.floor(lengths)),
            chance.random(count) < release.refusals,
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
    is_close: bool = True  # whether each of the canary's requests matters

    def run(self, most_s: float = 1200.0) -> tuple[Decision, int, float]:
        """How it ended, after how many of the canary's requests, and after how many seconds."""
        chance = random.Random(self.seed)
        if self.rehearsed and self._is_refused(chance):
            return Decision(Verdict.ROLL_BACK, "slower on the same prompts before it had any traffic"), 0, 0.0
        numbers = np.random.default_rng(self.seed)
        past = Proportion(int(numbers.binomial(self.past_requests, self.stable.errors)), self.past_requests)
        releases = (self.canary, self.stable)
        arrivals = Arrivals(numbers, *releases, self.world, most_s, self.plan.mirror_per_s)
        steps = [(ArmStats(), ArmStats())]
        progress = Progress(step_began_s=BEGIN_S, golden_step=99)
        second = 0
        while second < int(most_s):
            second = min(second + self._pause_s(second, progress.step, arrivals.met), int(most_s))
            length_s = steps[-1][0].timed.first_token.length_s
            came = arrivals.until(second, self.plan.weights[progress.step], length_s)
            steps[-1] = (merge_stats(steps[-1][0], came[0]), merge_stats(steps[-1][1], came[1]))
            found = decide(self.plan, progress, Measured(tuple(steps), past), BEGIN_S + second)
            if found.verdict is Verdict.ADVANCE:
                progress = replace(progress, step=progress.step + 1, step_began_s=BEGIN_S + second)
                steps.append((ArmStats(), ArmStats()))
            elif found.verdict is not Verdict.WAIT:
                return found, arrivals.met, float(second)
        return found, arrivals.met, most_s

    def _pause_s(self, second: int, step: int, met: int) -> int:
        pause_s = second * _LATER
        if self.is_close:
            requests = max(_CLOSE, met * _CLOSER)
            pause_s = min(pause_s, requests / (self.world.rate * self.plan.weights[step]))
        return max(1, int(pause_s))

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
