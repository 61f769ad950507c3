"""Releases, splits, rollouts and what is measured of them."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, String, Text

revision = "0004"
down_revision = "0003"
_SERIAL = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "releases",
        Column("model", String, primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("manifest", Text, nullable=False),
        Column("digest", String(64), nullable=False),
        Column("added_s", Double, nullable=False),
        Column("notes", Text, nullable=False),
        Column("wanted", Boolean, nullable=False),
        Column("state", String, nullable=False),
        Column("reason", Text, nullable=False),
        Column("since_s", Double, nullable=False),
        Column("profile", Text),
        Column("replicas_up", Integer),
        Column("replicas", Integer),
    )
    op.create_table(
        "splits",
        Column("model", String, primary_key=True),
        Column("split", Text, nullable=False),
        Column("changed_s", Double, nullable=False),
    )
    op.create_table(
        "rollouts",
        Column("id", _SERIAL, primary_key=True, autoincrement=True),
        Column("model", String, nullable=False),
        Column("stable", Integer, nullable=False),
        Column("canary", Integer, nullable=False),
        Column("plan", Text, nullable=False),
        Column("golden", Text, nullable=False),
        Column("state", String, nullable=False),
        Column("progress", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("figures", Text, nullable=False),
        Column("began_s", Double, nullable=False),
        Column("ended_s", Double),
    )
    op.create_index("ix_rollouts_model", "rollouts", ["model"])
    op.create_table(
        "arm_figures",
        Column("rollout_id", BigInteger, primary_key=True),
        Column("step", Integer, primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("process", String, primary_key=True),
        Column("figures", Text, nullable=False),
        Column("at_s", Double, nullable=False),
    )
    op.create_table(
        "release_events",
        Column("id", _SERIAL, primary_key=True, autoincrement=True),
        Column("at_s", Double, nullable=False),
        Column("model", String, nullable=False),
        Column("version", Integer),
        Column("what", String, nullable=False),
        Column("reason", Text, nullable=False),
    )
    op.create_index("ix_release_events_model", "release_events", ["model"])
    op.create_table(
        "control",
        Column("name", String, primary_key=True),
        Column("process", String, nullable=False),
        Column("beat", BigInteger, nullable=False),
    )
    op.create_table(
        "shadow_figures",
        Column("model", String, primary_key=True),
        Column("shadow", Integer, primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("process", String, primary_key=True),
        Column("at_s", Double, nullable=False),
        Column("equal", BigInteger, nullable=False),
        Column("different", BigInteger, nullable=False),
        Column("failed", BigInteger, nullable=False),
        Column("likeness", Double, nullable=False),
        Column("took_s", Double, nullable=False),
        Column("shadow_took_s", Double, nullable=False),
    )


def downgrade() -> None:
    for table in (
        "shadow_figures",
        "control",
        "release_events",
        "arm_figures",
        "rollouts",
        "splits",
        "releases",
    ):
        op.drop_table(table)
