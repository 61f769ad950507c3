"""What the store holds of objectives, as values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from python_backend.wire.tiers import Tier, tier_named
from router.control.objectives.distribution import added_up
from router.control.objectives.standing import Figures
from router.core.objective import Metric, Objective
from router.store.schema import counters, objective_figures, objectives

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from router.store.database import Store

# Routers write what they have measured anew long before this, while there is anything to tell.
FRESH_S = 90.0
COUNTER = "objective_changes"

_REFUSED = "refused"


Measured = dict[tuple[str, Tier], Figures]


def bump(store: Store, connection: Connection) -> None:
    """Tells every router that there is something to read; the first thing that a change does, so that
    changes go one after the other."""
    connection.execute(store.insert_new(counters).values({"name": COUNTER, "value": 0}))
    is_ours = counters.c.name == COUNTER
    connection.execute(sql.update(counters).where(is_ours).values(value=counters.c.value + 1))


def list_objectives(connection: Connection, model: str | None = None) -> list[Objective]:
    """By model, the tier that goes first before the others."""
    query = sql.select(objectives)
    if model is not None:
        query = query.where(objectives.c.model == model)
    found = [_objective(row) for row in connection.execute(query)]
    return sorted(found, key=lambda each: (each.model, each.tier))


def find_objective(connection: Connection, model: str, tier: Tier) -> Objective:
    """An empty one where nothing is asked."""
    row = connection.execute(sql.select(objectives).where(_is(model, tier))).first()
    return Objective(model, tier) if row is None else _objective(row)


def put_objective(store: Store, connection: Connection, objective: Objective, now_s: float) -> None:
    if objective.is_empty:
        connection.execute(sql.delete(objectives).where(_is(objective.model, objective.tier)))
        return
    limits = {metric.field: objective.limit_s(metric) for metric in Metric}
    row = {"model": objective.model, "tier": objective.tier.label, **limits, "changed_s": now_s}
    connection.execute(store.insert_or_update(objectives, row))


def read_measured(connection: Connection, now_s: float, model: str | None = None) -> Measured:
    """What all routers together have measured over their last minutes."""
    query = sql.select(objective_figures).where(objective_figures.c.at_s > now_s - FRESH_S)
    if model is not None:
        query = query.where(objective_figures.c.model == model)
    parts: dict[tuple[str, Tier], list[Figures]] = {}
    for row in connection.execute(query):
        parts.setdefault((row.model, tier_named(row.tier)), []).append(figures_from_json(row.figures))
    return {key: _together(found) for key, found in parts.items()}


def _together(parts: list[Figures]) -> Figures:
    counts = {metric: added_up(each.counts.get(metric, {}) for each in parts).counts for metric in Metric}
    return Figures(counts, sum(each.refused for each in parts))


def figures_to_json(figures: Figures) -> str:
    """Buckets and counts as pairs: short, as it is written every few seconds."""
    pairs = {metric.value: sorted(each.items()) for metric, each in figures.counts.items() if each}
    return json.dumps({**pairs, _REFUSED: figures.refused}, separators=(",", ":"))


def figures_from_json(text: str) -> Figures:
    """A measure that a newer router has and this one does not know is left out."""
    value: dict[str, Any] = json.loads(text)
    known = {metric: dict(value[metric.value]) for metric in Metric if metric.value in value}
    return Figures(known, value.get(_REFUSED, 0))


def _objective(row: Row[Any]) -> Objective:
    times = (row.first_token_s, row.inter_token_s, row.end_to_end_s)
    return Objective(row.model, tier_named(row.tier), *times)


def _is(model: str, tier: Tier) -> sql.ColumnElement[bool]:
    return (objectives.c.model == model) & (objectives.c.tier == tier.label)
