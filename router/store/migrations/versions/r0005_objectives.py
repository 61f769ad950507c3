"""Objectives, what is measured of them, decisions of the tuning, and the shares of tenants."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, String, Text

revision = "0005"
down_revision = "0004"
_SERIAL = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    op.add_column("limits", Column("weight", Integer))
    op.add_column("limits", Column("slot_percent", Integer))
    op.create_table(
        "objectives",
        Column("model", String, primary_key=True),
        Column("tier", String, primary_key=True),
        Column("first_token_s", Double),
        Column("inter_token_s", Double),
        Column("end_to_end_s", Double),
        Column("changed_s", Double, nullable=False),
    )
    op.create_table(
        "objective_figures",
        Column("router", String, primary_key=True),
        Column("model", String, primary_key=True),
        Column("tier", String, primary_key=True),
        Column("at_s", Double, nullable=False),
        Column("figures", Text, nullable=False),
    )
    op.create_table(
        "tuning_decisions",
        Column("id", _SERIAL, primary_key=True, autoincrement=True),
        Column("at_s", Double, nullable=False),
        Column("model", String, nullable=False),
        Column("version", Integer, nullable=False),
        Column("triton_model", String, nullable=False),
        Column("server", String),
        Column("action", String, nullable=False),
        Column("sentence", Text, nullable=False),
        Column("detail", Text, nullable=False),
    )
    op.create_index("ix_tuning_decisions_model", "tuning_decisions", ["model"])
    op.create_table(
        "tuning_pauses",
        Column("model", String, primary_key=True),
        Column("paused_s", Double, nullable=False),
    )


def downgrade() -> None:
    for table in ("tuning_pauses", "tuning_decisions", "objective_figures", "objectives"):
        op.drop_table(table)
    for column in ("slot_percent", "weight"):
        op.drop_column("limits", column)
