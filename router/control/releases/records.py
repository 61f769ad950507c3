"""What the store holds of releases, as values."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from router.control.releases.plan import OnTimeout, Plan, Progress, Tolerance
from router.control.releases.states import State
from router.core.manifest import Manifest, from_json, split_name
from router.routing.split import ModelSplit, split_from_json
from router.store.schema import facts, release_events, releases, rollouts, splits
from router.tenants.records import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection, RowMapping

MOST_GOLDEN_TOKENS = 1024
TOLERANCE_OF = "release_tolerance "  # and the model: the name of a fact
GOLDEN_CHECKS = ("contains", "equals", "matches", "similar", "schema")


@dataclass(frozen=True, slots=True)
class Release:
    """One release, and how it is doing."""

    manifest: Manifest
    digest: str
    added_s: float
    notes: str
    wanted: bool
    state: State
    reason: str
    since_s: float
    profile: dict[str, float] | None
    replicas_up: int | None = None
    replicas: int | None = None

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def condition(self) -> str:
        """Its state in words; of one that is ready also where it does not answer."""
        up, servers = self.replicas_up, self.replicas
        if self.state is not State.READY or up is None or servers is None or up >= servers:
            return self.state.value
        return f"{self.state.value}, {up or 'none'} of {servers} up" if servers > 1 else "ready, but down"


class RolloutState(str, Enum):
    RUNNING = "running"
    PAUSED = "paused"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled back"

    @property
    def is_over(self) -> bool:
        return self in (RolloutState.PROMOTED, RolloutState.ROLLED_BACK)


@dataclass(frozen=True, slots=True)
class GoldenPrompt:
    """A prompt whose answer is known: all that is given of it must hold.

    It contains, equals or matches a text, is `similar` to one by at least `min_likeness`, or is JSON that is
    valid against a `schema`, which who takes it from a person has checked.
    """

    prompt: str
    contains: str = ""
    equals: str = ""
    matches: str = ""
    max_tokens: int = 64
    similar: str = ""
    min_likeness: float = 0.8
    schema: dict[str, Any] | bool | None = None

    def __post_init__(self) -> None:
        if not (self.contains or self.equals or self.matches or self.similar) and self.schema is None:
            raise self._wrong(
                "say what the answer contains, equals or matches, what it is similar to, or its JSON schema"
            )
        if not 0 < self.min_likeness <= 1:
            raise self._wrong(f"min_likeness {self.min_likeness:g}; allowed: above 0, up to 1")
        if not 1 <= self.max_tokens <= MOST_GOLDEN_TOKENS:
            raise self._wrong(f"max_tokens {self.max_tokens}; allowed: 1 to {MOST_GOLDEN_TOKENS}")
        try:
            re.compile(self.matches)
        except re.error as error:
            raise self._wrong(f"{self.matches!r} is not a regular expression: {error}") from None

    def _wrong(self, what: str) -> ValueError:
        shown = self.prompt if len(self.prompt) <= 40 else f"{self.prompt[:39]}…"
        return ValueError(f"golden prompt {shown!r}: {what}")


@dataclass(frozen=True, slots=True)
class Rollout:
    id: int
    model: str
    stable: int
    canary: int
    plan: Plan
    golden: tuple[GoldenPrompt, ...]
    state: RolloutState
    progress: Progress
    reason: str
    figures: dict[str, Any]  # of each arm, as they were when the last decision was made; for people
    began_s: float
    ended_s: float | None


@dataclass(frozen=True, slots=True)
class ReleaseEvent:
    at_s: float
    model: str
    version: int | None
    what: str
    reason: str


def base_of(adapter: Manifest, there: Iterable[Release]) -> Release | None:
    """As it was named; or, where a stack now has it built in with other settings, what follows it there."""
    of_model = [each for each in there if each.manifest.model == split_name(adapter.base)[0]]
    named = next((each for each in of_model if each.manifest.name == adapter.base), None)
    if named is None or named.state is not State.GONE:
        return named
    weights = named.manifest.weights_sha256
    here = (
        each for each in of_model if each.state is not State.GONE and each.manifest.entry == adapter.entry
    )
    return next((each for each in here if each.manifest.weights_sha256 == weights), None)


def release_of(row: RowMapping) -> Release:
    return Release(
        from_json(row["manifest"]),
        row["digest"],
        row["added_s"],
        row["notes"],
        bool(row["wanted"]),
        State(row["state"]),
        row["reason"],
        row["since_s"],
        None if row["profile"] is None else json.loads(row["profile"]),
        row["replicas_up"],
        row["replicas"],
    )


def rollout_of(row: RowMapping) -> Rollout:
    return Rollout(
        row["id"],
        row["model"],
        row["stable"],
        row["canary"],
        plan_from_json(row["plan"]),
        tuple(GoldenPrompt(**each) for each in json.loads(row["golden"])),
        RolloutState(row["state"]),
        Progress(**json.loads(row["progress"])),
        row["reason"],
        json.loads(row["figures"]),
        row["began_s"],
        row["ended_s"],
    )


def plan_from_json(text: str) -> Plan:
    value = json.loads(text)
    tolerance = Tolerance(**value.pop("tolerance"))
    if "on_timeout" in value:
        value["on_timeout"] = OnTimeout(value["on_timeout"])
    return Plan(**{**value, "weights": tuple(value["weights"]), "tolerance": tolerance})


def tolerance_of(connection: Connection, model: str) -> Tolerance:
    """What holds for rollouts of the model that do not say otherwise."""
    found = connection.scalar(sql.select(facts.c.value).where(facts.c.name == TOLERANCE_OF + model))
    return Tolerance() if found is None else Tolerance(**json.loads(found))


def find_release(connection: Connection, model: str, version: int) -> Release:
    """Raises NotFound, saying which there are."""
    chosen = (releases.c.model == model) & (releases.c.version == version)
    row = connection.execute(sql.select(releases).where(chosen)).mappings().first()
    if row is None:
        there = ", ".join(each.manifest.name for each in list_releases(connection, model))
        known = f"there are {there}" if there else "`inflight release list` shows all of them"
        raise NotFound(f"release {model}@{version} not found; {known}")
    return release_of(row)


def is_there(connection: Connection, model: str, version: int) -> bool:
    chosen = (releases.c.model == model) & (releases.c.version == version)
    return connection.execute(sql.select(releases.c.model).where(chosen)).first() is not None


def list_releases(connection: Connection, model: str | None = None) -> list[Release]:
    query = sql.select(releases).order_by(releases.c.model, releases.c.version)
    if model is not None:
        query = query.where(releases.c.model == model)
    return [release_of(row) for row in connection.execute(query).mappings()]


def list_splits(connection: Connection) -> dict[str, ModelSplit]:
    rows = connection.execute(sql.select(splits)).mappings()
    return {row["model"]: split_from_json(row["model"], row["split"]) for row in rows}


def find_split(connection: Connection, model: str) -> ModelSplit | None:
    row = connection.execute(sql.select(splits).where(splits.c.model == model)).mappings().first()
    return None if row is None else split_from_json(model, row["split"])


def list_rollouts(
    connection: Connection, model: str | None = None, *, only_open: bool = False, newest: int = 50
) -> list[Rollout]:
    """The newest first."""
    query = sql.select(rollouts).order_by(rollouts.c.id.desc()).limit(newest)
    if model is not None:
        query = query.where(rollouts.c.model == model)
    if only_open:
        query = query.where(rollouts.c.ended_s.is_(None))
    return [rollout_of(row) for row in connection.execute(query).mappings()]


def list_events(connection: Connection, model: str | None = None, newest: int = 50) -> list[ReleaseEvent]:
    """The newest first."""
    query = sql.select(release_events).order_by(release_events.c.id.desc()).limit(newest)
    if model is not None:
        query = query.where(release_events.c.model == model)
    return [
        ReleaseEvent(row["at_s"], row["model"], row["version"], row["what"], row["reason"])
        for row in connection.execute(query).mappings()
    ]
