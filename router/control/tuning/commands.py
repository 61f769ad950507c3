"""What people may do about tuning: look at it, and have a model left alone; each act with its audit entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.control.objectives.records import list_objectives
from router.control.releases.records import list_releases
from router.control.releases.states import State
from router.control.tuning.decisions import (
    STEPS,
    TuningDecision,
    last_decisions,
    list_decisions,
    paused_models,
    set_paused,
)
from router.core.actions import Action
from router.tenants.audited import PlatformCommands
from router.tenants.records import NotFound

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from router.core.objective import Objective


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


class TuningCommands(PlatformCommands):
    _read_action = Action.OBJECTIVE_READ

    def explain(self, model: str | None = None, changes: int = 5) -> list[Explanation]:
        """Of one model, or of all that there are."""
        with self.look() as connection:
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
        with self.look() as connection:
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
            self._record(connection, label, model)
        return is_news


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
        there = f"there are: {', '.join(sorted(set(models)))}" if models else "there are no models yet"
        raise NotFound(f"model {model} not found; {there}")
