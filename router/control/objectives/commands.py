"""Objective commands: each is one transaction, with its audit entry.

Running routers apply them within a second.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from python_backend.wire.tiers import Tier
from router.control.objectives import records
from router.control.objectives.standing import Figures, standings
from router.control.releases.records import list_releases
from router.control.releases.states import State
from router.control.tuning.decisions import STEPS, last_decisions
from router.core.actions import Action
from router.core.manifest import Kind
from router.core.objective import Metric, Objective, metrics_of
from router.tenants.audited import PlatformCommands
from router.tenants.records import NotFound

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from sqlalchemy import Connection

    from router.control.objectives.standing import Standing

ALL_TIERS = tuple(Tier)


@dataclass(frozen=True, slots=True)
class ModelStandings:
    """One model with all its tiers; `kind` is None where it is no longer served."""

    model: str
    kind: Kind | None
    standings: tuple[Standing, ...]
    binds: tuple[str, ...] = ()  # of each engine, by its server


class ObjectiveCommands(PlatformCommands):
    _read_action = Action.OBJECTIVE_READ

    def show(self, model: str | None = None) -> list[ModelStandings]:
        """Of one model, or of all that are there or have an objective."""
        with self.look() as connection:
            kinds = _kinds(connection)
            found = records.list_objectives(connection, model)
            measured = records.read_measured(connection, self._clock(), model)
            names = sorted({*kinds, *(each.model for each in found)}) if model is None else [model]
            binds = {name: _binds(connection, name) for name in names}
        if model is not None and model not in kinds and not found:
            raise _unknown(model, kinds)
        asked = {(each.model, each.tier): each for each in found}
        return [
            ModelStandings(
                name,
                kinds.get(name),
                tuple(
                    each
                    for tier in Tier
                    for each in standings(
                        kinds.get(name),
                        asked.get((name, tier), Objective(name, tier)),
                        measured.get((name, tier), Figures()),
                    )
                ),
                binds[name],
            )
            for name in names
        ]

    def set(
        self,
        model: str,
        tiers: Collection[Tier],
        wanted: Mapping[Metric, float | None],
        *,
        keeps_others: bool = False,
    ) -> list[Objective]:
        """What is not in `wanted` asks for nothing any more, or stays where it `keeps_others`."""
        values = {metric.field: seconds for metric, seconds in wanted.items()}
        labels = sorted(tier.label for tier in tiers)
        with self._act("set", model, {"tiers": labels, **values}) as connection:
            kinds = _kinds(connection)
            if model not in kinds:
                raise _unknown(model, kinds)
            _refuse_other_kind(model, kinds[model], wanted)
            changed = []
            for tier in sorted(tiers):
                empty = Objective(model, tier)
                before = records.find_objective(connection, model, tier) if keeps_others else empty
                changed.append(before.wanting(wanted))
                records.put_objective(self._store, connection, changed[-1], self._clock())
        return changed

    def clear(self, model: str, tiers: Collection[Tier] = ALL_TIERS) -> list[Objective]:
        """Those that were set; also for a model that is no longer served."""
        with self._act("clear", model, {"tiers": sorted(tier.label for tier in tiers)}) as connection:
            gone = [each for each in records.list_objectives(connection, model) if each.tier in tiers]
            if not gone:
                whose = "" if len(tiers) == len(ALL_TIERS) else f" for {_listed(tiers)}"
                raise NotFound(f"{model} has no objective{whose}")
            for each in gone:
                empty = Objective(model, each.tier)
                records.put_objective(self._store, connection, empty, self._clock())
        return gone

    @contextmanager
    def _act(self, what: str, model: str, detail: dict[str, Any]) -> Iterator[Connection]:
        label = f"objective.{what}"
        self._check(Action.OBJECTIVE_WRITE, label, model)
        with self._store.begin() as connection:
            records.bump(self._store, connection)
            yield connection
            self._record(connection, label, model, detail)


def _kinds(connection: Connection) -> dict[str, Kind]:
    found = list_releases(connection)
    return {each.manifest.model: each.manifest.kind for each in found if each.state is not State.GONE}


def _unknown(model: str, kinds: Mapping[str, Kind]) -> NotFound:
    there = (
        f"there are: {', '.join(sorted(kinds))}"
        if kinds
        else "there are no models yet: run `inflight up` first"
    )
    return NotFound(f"model {model} not found; {there}")


def _refuse_other_kind(model: str, kind: Kind, wanted: Mapping[Metric, float | None]) -> None:
    own = metrics_of(kind)
    for metric, seconds in wanted.items():
        if seconds is not None and metric not in own:
            does = "generates text" if kind is Kind.TEXT else f"is for {kind.value} and has no tokens"
            raise ValueError(
                f"{model} {does}: its objectives are {' and '.join(each.words for each in own)}, "
                f"not {metric.words}"
            )


def _listed(tiers: Collection[Tier]) -> str:
    return ", ".join(tier.label for tier in sorted(tiers))


def _binds(connection: Connection, model: str) -> tuple[str, ...]:
    """What keeps each of its engines from doing more, as the router in control wrote it down."""
    ready = {each.manifest.version for each in list_releases(connection, model) if each.state is State.READY}
    return tuple(
        f"{server}: {engine['binds']}"
        for decided in last_decisions(connection, model)
        if decided.action == STEPS and decided.version in ready
        for server, engine in decided.detail["engines"].items()
        if "binds" in engine
    )
