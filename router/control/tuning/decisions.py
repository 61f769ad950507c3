"""What was decided about queue delays, and which models are paused, as the store has it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from router.control.tuning.ladder import Action
from router.store.schema import tuning_decisions, tuning_pauses

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from router.store.database import Store

MOST_KEPT = 1000
# No change, but how the steps of a release's engines stand; the engines change that by themselves.
STEPS = "steps"
_NO_CHANGE = (Action.HOLD.value, STEPS)


@dataclass(frozen=True, slots=True)
class TuningDecision:
    """One decision about one Triton model of a release; `detail` is what was measured and is in force."""

    at_s: float
    model: str
    version: int
    triton_model: str
    server: str | None
    action: str
    sentence: str
    detail: dict[str, Any]

    @property
    def release(self) -> str:
        return f"{self.model}@{self.version}"


def list_decisions(
    connection: Connection, model: str | None = None, newest: int = 50, *, with_holds: bool = False
) -> list[TuningDecision]:
    """The newest first; of changes alone, unless others are asked for."""
    chosen = sql.select(tuning_decisions).order_by(tuning_decisions.c.id.desc()).limit(newest)
    if model is not None:
        chosen = chosen.where(tuning_decisions.c.model == model)
    if not with_holds:
        chosen = chosen.where(tuning_decisions.c.action.not_in(_NO_CHANGE))
    return [_decision(row) for row in connection.execute(chosen).mappings()]


def last_decisions(connection: Connection, model: str | None = None) -> list[TuningDecision]:
    """The last one about each Triton model of each release: how things stand."""
    row = tuning_decisions.c
    latest = sql.select(sql.func.max(row.id)).group_by(row.model, row.version, row.triton_model)
    if model is not None:
        latest = latest.where(row.model == model)
    chosen = sql.select(tuning_decisions).where(row.id.in_(latest))
    ordered = chosen.order_by(row.model, row.version, row.triton_model)
    return [_decision(each) for each in connection.execute(ordered).mappings()]


def paused_models(connection: Connection) -> dict[str, float]:
    """Since when, by name."""
    found = connection.execute(sql.select(tuning_pauses)).mappings()
    return {row["model"]: row["paused_s"] for row in found}


def keep_decision(decided: TuningDecision, connection: Connection) -> None:
    """A decision that changes nothing replaces the last such one: only the newest is of interest."""
    row = tuning_decisions.c
    of_it = (row.model == decided.model) & (row.version == decided.version)
    of_it &= row.triton_model == decided.triton_model
    last = connection.execute(
        sql.select(row.id, row.action).where(of_it).order_by(row.id.desc()).limit(1)
    ).first()
    if last is not None and last.action == decided.action and decided.action in _NO_CHANGE:
        connection.execute(sql.delete(tuning_decisions).where(row.id == last.id))
    values = {
        "at_s": decided.at_s,
        "model": decided.model,
        "version": decided.version,
        "triton_model": decided.triton_model,
        "server": decided.server,
        "action": decided.action,
        "sentence": decided.sentence,
        "detail": json.dumps(decided.detail),
    }
    connection.execute(sql.insert(tuning_decisions).values(values))
    newest = sql.select(row.id).order_by(row.id.desc()).offset(MOST_KEPT - 1).limit(1)
    oldest = connection.scalar(newest)
    if oldest is not None:
        connection.execute(sql.delete(tuning_decisions).where(row.id < oldest))


def set_paused(store: Store, connection: Connection, model: str, now_s: float, is_paused: bool) -> bool:
    """Whether that was news."""
    was_paused = model in paused_models(connection)
    if is_paused and not was_paused:
        connection.execute(store.insert_new(tuning_pauses).values({"model": model, "paused_s": now_s}))
    elif was_paused and not is_paused:
        connection.execute(sql.delete(tuning_pauses).where(tuning_pauses.c.model == model))
    return was_paused is not is_paused


def _decision(row: RowMapping) -> TuningDecision:
    return TuningDecision(
        row["at_s"],
        row["model"],
        row["version"],
        row["triton_model"],
        row["server"],
        row["action"],
        row["sentence"],
        json.loads(row["detail"]),
    )
