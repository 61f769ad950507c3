"""What follows for a rollout from all that is known of it: a value in, a value out."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from router.control.releases.arm_stats import PAST, ArmStats, Measured, merge_stats
from router.control.releases.canary import Decision, Verdict, decide, golden_objection
from router.control.releases.canary_checks import findings
from router.control.releases.faults import Deaths, objection_to, reason_to_hold
from router.control.releases.plan import Progress
from router.control.releases.records import RolloutState
from router.control.releases.shadow_gate import ShadowAnswers, judge_likeness
from router.control.releases.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router.control.releases.arms import ArmFigures
    from router.control.releases.evidence import Spread
    from router.control.releases.gates import Finding
    from router.control.releases.records import Release, Rollout
    from router.control.releases.rehearsal import Rehearsed
    from router.routing.split import ModelSplit

# As long as a stub that died takes to be revived, with some patience.
_MOST_DOWN_S = 20.0
BEFORE_TRAFFIC = "before_traffic"  # among the figures: how the rehearsal went
_LOST = {
    State.GONE: "is gone: the stack it was built into serves another now",
    State.DRAINING: "is being unloaded",
}


@dataclass(frozen=True, slots=True)
class Golden:
    """How the golden prompts went before a step, or in it."""

    step: int
    failed: int
    note: str


@dataclass(frozen=True, slots=True)
class Situation:
    """One open rollout and what it depends on, as of one moment of the store."""

    rollout: Rollout
    split: ModelSplit | None
    canary: Release | None
    stable: Release | None
    measured: Measured
    deaths: Deaths = field(default_factory=Deaths)
    shadow: ShadowAnswers = field(default_factory=ShadowAnswers)

    @property
    def is_ready(self) -> bool:
        return self.canary is not None and self.canary.state is State.READY


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written; a `state` ends the rollout or pauses it, a `split` replaces the model's."""

    progress: Progress
    reason: str
    figures: dict[str, Any]
    event: str | None = None
    state: RolloutState | None = None
    split: ModelSplit | None = None
    drops_canary: bool = False


def measured_of(rollout: Rollout, figures: Iterable[ArmFigures]) -> Measured:
    """Both arms of each step so far, what all routers have counted of them added up."""
    arms: dict[tuple[int, int], list[ArmStats]] = {}
    for each in figures:
        arms.setdefault((each.step, each.version), []).append(each.stats)
    steps = range(max(rollout.progress.step, 0) + 1)
    return Measured(
        tuple(
            (
                reduce(merge_stats, arms.get((step, rollout.canary), ()), ArmStats()),
                reduce(merge_stats, arms.get((step, rollout.stable), ()), ArmStats()),
            )
            for step in steps
        ),
        reduce(merge_stats, arms.get((PAST, rollout.stable), ()), ArmStats()).errors,
    )


def next_change(
    situation: Situation,
    golden: Golden | None,
    down_s: float,
    now_s: float,
    rehearsed: Rehearsed | None = None,
) -> Change | None:
    """None where all is as it was told last."""
    known = situation.rollout
    if rehearsed is not None:
        situation = _after_rehearsal(situation, rehearsed)
    rollout, split = situation.rollout, situation.split
    progress = rollout.progress
    if golden is not None and golden.step == progress.step:
        progress = replace(
            progress, golden_step=golden.step, golden_failed=golden.failed, golden_note=golden.note
        )
    requests = situation.measured.steps[-1][0].errors.total if progress.step >= 0 else 0
    progress = replace(progress, step_requests=requests)
    if progress.step >= 0 and (split is None or split.rollout_id != rollout.id):
        reason = "the split was changed by someone else"
        drops = split is None or rollout.canary not in split.versions
        return Change(
            progress, reason, rollout.figures, "rollback", RolloutState.ROLLED_BACK, drops_canary=drops
        )
    decision = _trouble(situation, down_s)
    if decision is None and rehearsed is not None and rehearsed.objection:
        decision = Decision(Verdict.ROLL_BACK, rehearsed.objection)
    decision = decision or _decide(situation, progress, now_s)
    change = _held(situation, _change_for(situation, progress, decision, now_s))
    is_news = (change.progress, change.reason) != (known.progress, known.reason)
    return change if is_news or change.event is not None else None


def _after_rehearsal(situation: Situation, rehearsed: Rehearsed) -> Situation:
    rollout = situation.rollout
    figures = {BEFORE_TRAFFIC: rehearsed.figures} if rehearsed.line else {}
    progress = replace(rollout.progress, is_rehearsed=True)
    return replace(situation, rollout=replace(rollout, progress=progress, figures=figures))


def _trouble(situation: Situation, down_s: float) -> Decision | None:
    """Why a canary cannot continue, whatever was measured of it."""
    rollout, canary = situation.rollout, situation.canary
    name = f"{rollout.model}@{rollout.canary}"
    if canary is None:
        return Decision(Verdict.ROLL_BACK, f"{name} was removed")
    if canary.state is State.FAILED:
        return Decision(Verdict.ROLL_BACK, f"{name} failed: {canary.reason or 'no reason given'}")
    if canary.state in _LOST or not canary.wanted:
        lost = _LOST.get(canary.state, "is being unloaded on request")
        return Decision(Verdict.ROLL_BACK, f"{name} {lost}")
    died = objection_to(situation.deaths, name, f"{rollout.model}@{rollout.stable}")
    if died is not None:
        return Decision(Verdict.ROLL_BACK, died)
    if rollout.progress.step >= 0 and down_s >= _MOST_DOWN_S:
        return Decision(Verdict.ROLL_BACK, f"no replica of {name} has been up for {down_s:.0f} s")
    return None


def _decide(situation: Situation, progress: Progress, now_s: float) -> Decision:
    rollout = situation.rollout
    if progress.step >= 0:
        decision = decide(rollout.plan, progress, situation.measured, now_s)
        if decision.verdict in (Verdict.ADVANCE, Verdict.PROMOTE) and not situation.is_ready:
            return Decision(Verdict.WAIT, "waiting for the canary to be ready again")
        return decision
    objection = golden_objection(rollout.plan, progress)
    if objection is not None:
        return Decision(Verdict.ROLL_BACK, objection)
    if progress.paused:
        return Decision(Verdict.WAIT, "paused")
    if not situation.is_ready or situation.split is None:
        return Decision(Verdict.WAIT, "waiting for the canary to be ready")
    if progress.golden_step < progress.step:
        return Decision(Verdict.WAIT, "waiting for its golden prompts before it gets traffic")
    if not progress.is_rehearsed:
        return Decision(
            Verdict.WAIT, f"being compared with {rollout.model}@{rollout.stable} before it gets traffic"
        )
    unlike = judge_likeness(rollout.plan, situation.shadow)
    if unlike is not None:
        return unlike
    said = [f"ready: starts with {rollout.plan.weights[0] * 100:.4g}% of the traffic"]
    said.append(rollout.figures.get(BEFORE_TRAFFIC, {}).get("line", ""))
    said += [situation.shadow.line] if rollout.plan.min_likeness else []
    return Decision(Verdict.ADVANCE, "; ".join(filter(None, said)))


def _held(situation: Situation, change: Change) -> Change:
    """After the death of a process a canary stays where it is until somebody resumes the rollout.

    A rollback goes before.
    """
    rollout, deaths = situation.rollout, situation.deaths
    names = (f"{rollout.model}@{version}" for version in (rollout.canary, rollout.stable))
    reason = reason_to_hold(deaths, *names)
    if reason is None or change.state is RolloutState.ROLLED_BACK:
        return change
    if rollout.progress.known_deaths < deaths.canary:
        progress = replace(
            rollout.progress,
            paused=True,
            known_deaths=deaths.canary,
            step_requests=change.progress.step_requests,
        )
        return Change(progress, reason, change.figures, "hold", RolloutState.PAUSED)
    return replace(change, reason=reason) if rollout.progress.paused else change


def _change_for(situation: Situation, progress: Progress, decision: Decision, now_s: float) -> Change:
    rollout, split = situation.rollout, situation.split
    figures = {key: value for key, value in rollout.figures.items() if key == BEFORE_TRAFFIC}
    if progress.step >= 0:
        figures |= figures_of(rollout, situation.measured, decision.findings)
    if situation.deaths.canary or situation.deaths.stable:
        figures["deaths"] = asdict(situation.deaths)
    if decision.verdict is Verdict.WAIT:
        event = "idle" if decision.is_idle and not progress.told_idle else None
        if decision.is_held and not progress.told_held:
            event = "hold"
        told = replace(progress, told_idle=decision.is_idle, told_held=decision.is_held)
        return Change(told, decision.reason, figures, event)
    if decision.verdict is Verdict.ADVANCE:
        assert split is not None
        step = progress.step + 1
        plan = rollout.plan
        copied = (plan.mirror_per_s, plan.replay_per_s)
        after = split.with_canary(rollout.canary, plan.weights[step], rollout.id, step, *copied)
        ahead = replace(
            progress, step=step, step_began_s=now_s, step_requests=0, told_idle=False, told_held=False
        )
        return Change(ahead, decision.reason, figures, "advance", split=after)
    if decision.verdict is Verdict.PROMOTE:
        assert split is not None
        promoted, after = RolloutState.PROMOTED, split.all_to(rollout.canary)
        return Change(progress, decision.reason, figures, "promote", promoted, after)
    # Before the first step the split knows nothing of the canary.
    back = split.all_to(rollout.stable) if split is not None and progress.step >= 0 else None
    named = back or split
    drops = named is None or rollout.canary not in named.versions
    return Change(progress, decision.reason, figures, "rollback", RolloutState.ROLLED_BACK, back, drops)


def figures_of(rollout: Rollout, measured: Measured, found: Sequence[Finding]) -> dict[str, Any]:
    """For people: what the decision was made from, or could have been."""
    canary, stable = (reduce(merge_stats, arms) for arms in zip(*measured.steps, strict=True))
    now = measured.steps[-1]
    return {
        "canary": _arm(rollout.canary, canary, now[0]),
        "stable": _arm(rollout.stable, stable, now[1]),
        "gates": [
            {
                "gate": each.gate.value,
                "shown": each.shown.value,
                "against": round(each.against, 3),
                "within": None if each.within is None else round(each.within, 3),
                "more_requests": each.more,
                "allowed": each.allowed,
                "figures": each.figures,
            }
            for each in found or findings(rollout.plan, measured)
        ],
    }


def _arm(version: int, every: ArmStats, now: ArmStats) -> dict[str, Any]:
    """Counts of all steps; typical values of the present one."""
    return {
        "version": version,
        "errors": asdict(every.errors),
        "copies": every.copies,
        "replays": every.replays,
        "refusals": asdict(every.refusals),
        "step_requests": now.errors.total,
        "first_token_s": _typical(now.first_token),
        "between_tokens_s": _typical(now.between_tokens),
        "tokens": _typical(now.length),
    }


def _typical(logs: Spread) -> float | None:
    return round(math.exp(logs.mean), 6) if logs.count else None
