"""The tables of objectives and of tuning: what answers are to take at most, what they take, what was done."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Integer, String, Table, Text

from router.store.schema import METADATA

_SERIAL = BigInteger().with_variant(Integer, "sqlite")

# `tier` is a tier's label. What is not asked for is null; a row that asks for nothing is not kept.
objectives = Table(
    "objectives",
    METADATA,
    Column("model", String, primary_key=True),
    Column("tier", String, primary_key=True),
    Column("first_token_s", Double),
    Column("inter_token_s", Double),
    Column("end_to_end_s", Double),
    Column("changed_s", Double, nullable=False),
)
# What each router has measured over its last minutes; added up they are what is shown.
objective_figures = Table(
    "objective_figures",
    METADATA,
    Column("router", String, primary_key=True),
    Column("model", String, primary_key=True),
    Column("tier", String, primary_key=True),
    Column("at_s", Double, nullable=False),
    Column("figures", Text, nullable=False),
)
# The newest thousand. `server` is null for what concerns all of them, `detail` what was measured.
tuning_decisions = Table(
    "tuning_decisions",
    METADATA,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("at_s", Double, nullable=False),
    Column("model", String, nullable=False, index=True),
    Column("version", Integer, nullable=False),
    Column("triton_model", String, nullable=False),
    Column("server", String),
    Column("action", String, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("detail", Text, nullable=False),
)
# Models that nobody tunes until they are taken out again.
tuning_pauses = Table(
    "tuning_pauses",
    METADATA,
    Column("model", String, primary_key=True),
    Column("paused_s", Double, nullable=False),
)
