"""What people may do about tuning: look at it, and have a model left alone; each act with its audit entry."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.objectives.records import list_objectives
from router.releases.life import State
from router.rollouts.records import list_releases
from router.store.schema import audit
from router.tenancy.audited import Forbidden
from router.tenancy.lookup import NotFound
from router.tenancy.model import AuditEntry
from router.tenancy.rbac import Action, Actor, allows
from router.tenancy.rows import row_of_audit
from router.tuning.reading import (
    STEPS,
    TuningDecision,
    last_decisions,
    list_decisions,
    paused_models,
    set_paused,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from router.objectives.objective import Objective
    from router.store.database import Store


@dataclass(frozen=True, slots=True)
class Explanation:
    """How the tuning of one model stands.

    `standing` has one entry for each Triton model that gathers, `engines` one for each release that has any.
    """

    model: str
    has_objective: bool
    paused_s: float | None
    standing: tuple[TuningDecision, ...]
    engines: tuple[TuningDecision, ...]
    changes: tuple[TuningDecision, ...]


class TuningOffice:
    def __init__(self, store: Store, actor: Actor, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._actor = actor
        self._clock = clock

    def explain(self, model: str | None = None, changes: int = 5) -> list[Explanation]:
        """Of one model, or of all that there are."""
        with self._look() as connection:
            models = _models(connection)
            if model is not None:
                _require(model, models)
                models = [model]
            objectives = {each.model for each in list_objectives(connection) if _counts(each)}
            paused = paused_models(connection)
            return [
                _explanation(connection, name, name in objectives, paused.get(name), changes)
                for name in models
            ]

    def history(self, model: str | None = None, newest: int = 50) -> list[TuningDecision]:
        with self._look() as connection:
            found = list_decisions(connection, model, newest)
            if model is not None and not found:
                _require(model, _models(connection))
            return found

    def pause(self, model: str, is_paused: bool = True) -> bool:
        """What is in force stays in force. Returns whether that was news."""
        label = "tuning.pause" if is_paused else "tuning.resume"
        self._check(Action.OBJECTIVE_WRITE, label, model)
        with self._store.begin() as connection:
            # A pause may outlive its model.
            _require(model, [*_models(connection), *paused_models(connection)])
            is_news = set_paused(self._store, connection, model, self._clock(), is_paused)
            self._write(connection, self._entry(label, model, True))
        return is_news

    @contextmanager
    def _look(self) -> Iterator[Connection]:
        self._check(Action.OBJECTIVE_READ, Action.OBJECTIVE_READ.label, "")
        with self._store.read() as connection:
            yield connection

    def _check(self, action: Action, label: str, target: str) -> None:
        if allows(self._actor, action, None):
            return
        with self._store.begin() as connection:
            self._write(connection, self._entry(label, target, False))
        raise Forbidden(f"{action.label} is not allowed")

    def _entry(self, label: str, target: str, is_allowed: bool) -> AuditEntry:
        return AuditEntry(self._clock(), self._actor.user_id, None, label, target, is_allowed, {})

    def _write(self, connection: Connection, entry: AuditEntry) -> None:
        connection.execute(sql.insert(audit).values(row_of_audit(entry)))


def _explanation(
    connection: Connection, model: str, has_objective: bool, paused_s: float | None, changes: int
) -> Explanation:
    ready = {each.manifest.version for each in list_releases(connection, model) if each.state is State.READY}
    last = [each for each in last_decisions(connection, model) if each.version in ready]
    return Explanation(
        model,
        has_objective,
        paused_s,
        tuple(each for each in last if each.action != STEPS),
        tuple(each for each in last if each.action == STEPS),
        tuple(list_decisions(connection, model, changes)),
    )


def _counts(objective: Objective) -> bool:
    """Whether a queue delay follows from it: from token to token nobody waits in a queue."""
    return objective.first_token_s is not None or objective.end_to_end_s is not None


def _models(connection: Connection) -> list[str]:
    found = list_releases(connection)
    return sorted({each.manifest.model for each in found if each.state is not State.GONE})


def _require(model: str, models: list[str]) -> None:
    if model not in models:
        there = f"there are: {', '.join(sorted(set(models)))}" if models else "there are none yet"
        raise NotFound(f"there is no model {model}; {there}")
