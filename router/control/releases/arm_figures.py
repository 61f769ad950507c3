"""What was measured of the arms of a rollout, as it is kept in the store."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from router.control.releases.canary import ArmStats, Timed
from router.control.releases.evidence import Proportion, Spread
from router.control.releases.sums import Stretches
from router.store.release_tables import arm_figures

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """What one router has measured of one arm in one step."""

    rollout_id: int
    step: int
    version: int
    process: str
    stats: ArmStats


def stats_to_json(stats: ArmStats) -> str:
    """Short, as it is written every second."""
    named = {
        name: asdict(getattr(stats, name))
        for name in ("errors", "refusals", "first_token", "between_tokens", "length")
    }
    timed = stats.timed
    named["timed"] = {
        name: [stretches.length_s, [[number, *_short(spread)] for number, spread in stretches.parts]]
        for name, stretches in (
            ("first_token", timed.first_token),
            ("between_tokens", timed.between_tokens),
            ("length", timed.length),
        )
    }
    return json.dumps(named, separators=(",", ":"))


def _short(spread: Spread) -> tuple[int, float, float]:
    return spread.count, round(spread.mean, 6), round(spread.squares, 6)


def stats_from_json(text: str) -> ArmStats:
    value = json.loads(text)
    return ArmStats(
        Proportion(**value["errors"]),
        Proportion(**value["refusals"]),
        Spread(**value["first_token"]),
        Spread(**value["between_tokens"]),
        Spread(**value["length"]),
        Timed(**{name: _stretches(*each) for name, each in value.get("timed", {}).items()}),
    )


def _stretches(length_s: int, parts: list[list[Any]]) -> Stretches:
    return Stretches(length_s, tuple((number, Spread(*rest)) for number, *rest in parts))


def read_figures(connection: Connection, rollout_id: int) -> list[ArmFigures]:
    """Of all routers, with the times that comparisons are made by."""
    query = sql.select(arm_figures).where(arm_figures.c.rollout_id == rollout_id)
    return [
        ArmFigures(row.rollout_id, row.step, row.version, row.process, stats_from_json(row.figures))
        for row in connection.execute(query)
    ]
