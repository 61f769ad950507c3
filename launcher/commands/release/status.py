"""How the releases of each model are doing, gathered from one moment of the store."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from launcher.commands.release.control import has_router_in_control
from launcher.commands.release.expectation import Expectation, expectation
from router.control.releases import records
from router.control.releases.arm_stats import PAST
from router.control.releases.arms import read_figures
from router.control.releases.evidence import Spread
from router.control.releases.shadow_figures import list_shadows
from router.control.releases.sums import merge_spreads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from router.control.releases.arms import ArmFigures
    from router.control.releases.evidence import Proportion
    from router.control.releases.records import Release, ReleaseEvent, Rollout
    from router.control.releases.shadow_figures import ShadowFigures
    from router.routing.split import ModelSplit

# Events that gave all requests to one release.
_BY_HAND = ("promote", "rollback")
_LOOKED_AT = 200


@dataclass(frozen=True)
class ReleaseStatus:
    release: Release
    share: float
    role: str

    def as_json(self) -> dict[str, Any]:
        manifest = self.release.manifest
        return {
            "release": manifest.name,
            "version": manifest.version,
            "kind": manifest.kind.value,
            "built_in": manifest.is_built_in,
            "state": self.release.state.value,
            "replicas": self.release.replicas,
            "replicas_up": self.release.replicas_up,
            "reason": self.release.reason,
            "since_s": self.release.since_s,
            "wanted": self.release.wanted,
            "share": self.share,
            "role": self.role,
        }


@dataclass(frozen=True)
class ArmStatus:
    """Requests, errors and refusals of all steps; times of the present one, for load differs over time."""

    version: int
    role: str
    requests: int
    copies: int
    replays: int
    step_requests: int
    error_rate: float
    refusal_rate: float
    first_token_s: float | None
    between_tokens_s: float | None
    tokens: float | None


@dataclass(frozen=True)
class RolloutStatus:
    rollout: Rollout
    arms: tuple[ArmStatus, ...]
    expectation: Expectation | None = None

    def as_json(self) -> dict[str, Any]:
        rollout = self.rollout
        return {
            "id": rollout.id,
            "stable": rollout.stable,
            "canary": rollout.canary,
            "state": rollout.state.value,
            "step": rollout.progress.step + 1,
            "steps": list(rollout.plan.weights),
            "reason": rollout.reason,
            "began_s": rollout.began_s,
            "ended_s": rollout.ended_s,
            "before_traffic": rollout.figures.get("before_traffic"),
            "deaths": rollout.figures.get("deaths"),
            "expected_s": self.expected_s,
            "arms": [asdict(arm) for arm in self.arms],
        }

    @property
    def expected_s(self) -> float | None:
        """From its first step to its promotion; None where no requests come."""
        found = self.expectation
        return None if found is None or math.isinf(found.whole_s) else round(found.whole_s)


@dataclass(frozen=True)
class Turn:
    """A promotion or a rollback: the end of a rollout, or an act without one."""

    at_s: float
    what: str
    reason: str


@dataclass(frozen=True)
class ModelStatus:
    model: str
    split: ModelSplit | None
    releases: tuple[ReleaseStatus, ...]
    rollout: RolloutStatus | None  # the open one
    last_turn: Turn | None
    shadows: tuple[ShadowFigures, ...] = ()  # of the present shadow

    def as_json(self) -> dict[str, Any]:
        split, turn = self.split, self.last_turn
        shadow = split.shadow if split else None
        return {
            "model": self.model,
            "sticky": split.sticky.value if split else None,
            "shadow": {"version": shadow.version, "share": shadow.share} if shadow else None,
            "shadow_figures": [
                {"shadow": each.shadow, "version": each.version, **asdict(each.sums)} for each in self.shadows
            ],
            "releases": [each.as_json() for each in self.releases],
            "rollout": self.rollout.as_json() if self.rollout else None,
            "last": None if turn is None else asdict(turn),
        }


@dataclass(frozen=True)
class Status:
    models: tuple[ModelStatus, ...]
    has_router_in_control: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "in_control": self.has_router_in_control,
            "models": [each.as_json() for each in self.models],
        }


def read_status(connection: Connection, model: str | None) -> Status:
    """Of one model, or of all that have releases."""
    known = records.list_releases(connection, model)
    splits = records.list_splits(connection)
    names = sorted({each.manifest.model for each in known})
    models = tuple(
        _of_model(connection, name, splits.get(name), [e for e in known if e.manifest.model == name])
        for name in names
    )
    return Status(models, has_router_in_control(connection))


def _of_model(
    connection: Connection, model: str, split: ModelSplit | None, releases: Sequence[Release]
) -> ModelStatus:
    open_ones = records.list_rollouts(connection, model, only_open=True)
    rollout = open_ones[0] if open_ones else None
    shadow = split.shadow.version if split and split.shadow else None
    return ModelStatus(
        model,
        split,
        tuple(
            ReleaseStatus(
                each,
                split.weight_of(each.version) if split else 0.0,
                role_of(each.version, split, rollout),
            )
            for each in releases
        ),
        None if rollout is None else _of_rollout(connection, rollout),
        last_turn(
            records.list_rollouts(connection, model),
            records.list_events(connection, model, newest=_LOOKED_AT),
        ),
        tuple(each for each in list_shadows(connection, model) if each.shadow == shadow),
    )


def last_turn(rollouts: Sequence[Rollout], events: Sequence[ReleaseEvent]) -> Turn | None:
    """Both the newest first. The end of a rollout is an event too, and as a rollout it says more."""
    ended = next((each for each in rollouts if each.ended_s is not None), None)
    event = next((each for each in events if each.what in _BY_HAND), None)
    if ended is not None and ended.ended_s is not None and (event is None or ended.ended_s >= event.at_s - 1):
        return Turn(ended.ended_s, f"{ended.model}@{ended.canary} {ended.state.value}", ended.reason)
    if event is None:
        return None
    which = event.model if event.version is None else f"{event.model}@{event.version}"
    return Turn(event.at_s, f"{event.what} to {which}", event.reason)


def role_of(version: int, split: ModelSplit | None, rollout: Rollout | None) -> str:
    if rollout is not None and version == rollout.canary:
        return "canary"
    if split is None:
        return ""
    if version == split.stable:
        return "stable"
    if split.weight_of(version) > 0:
        return "arm"
    if split.shadow is not None and version == split.shadow.version:
        return "shadow"
    return "standby" if version == split.standby else ""


def _of_rollout(connection: Connection, rollout: Rollout) -> RolloutStatus:
    found = rollout_status(rollout, read_figures(connection, rollout.id))
    return replace(found, expectation=expectation(connection, rollout.model, rollout.plan, time.time()))


def rollout_status(rollout: Rollout, figures: Sequence[ArmFigures]) -> RolloutStatus:
    arms = ((rollout.stable, "stable"), (rollout.canary, "canary"))
    figures = [each for each in figures if each.step != PAST]
    return RolloutStatus(
        rollout,
        tuple(
            _arm(
                version,
                role,
                rollout,
                [each for each in figures if each.version == version],
            )
            for version, role in arms
        ),
    )


def _arm(version: int, role: str, rollout: Rollout, figures: Sequence[ArmFigures]) -> ArmStatus:
    every = [each.stats for each in figures]
    now = [each.stats for each in figures if each.step == rollout.progress.step]
    return ArmStatus(
        version,
        role,
        requests=sum(each.met for each in every),
        copies=sum(each.copies for each in every),
        replays=sum(each.replays for each in every),
        step_requests=sum(each.errors.total for each in now),
        error_rate=_rate(each.errors for each in every),
        refusal_rate=_rate(each.refusals for each in every),
        first_token_s=_typical(each.first_token for each in now),
        between_tokens_s=_typical(each.between_tokens for each in now),
        tokens=_typical(each.length for each in every),
    )


def _rate(counted: Iterable[Proportion]) -> float:
    kept = list(counted)
    total = sum(each.total for each in kept)
    return sum(each.hits for each in kept) / total if total else 0.0


def _typical(spreads: Iterable[Spread]) -> float | None:
    """Of logarithms, so the geometric mean."""
    merged = Spread()
    for each in spreads:
        merged = merge_spreads(merged, each)
    return math.exp(merged.mean) if merged.count else None
