"""The tables of releases: what there is, who answers, and how rollouts went."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, String, Table, Text

from router.store.schema import METADATA

_SERIAL = BigInteger().with_variant(Integer, "sqlite")

# `manifest` is the text that `digest` is of. `wanted`: it is to be loaded.
releases = Table(
    "releases",
    METADATA,
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
    Column("profile", Text),  # measured when it was first loaded
    # On how many of the servers it can take requests, as the router in control sees it.
    Column("replicas_up", Integer),
    Column("replicas", Integer),
)
# One row a model, replaced as a whole: that is what makes a change of the split atomic.
splits = Table(
    "splits",
    METADATA,
    Column("model", String, primary_key=True),
    Column("split", Text, nullable=False),
    Column("changed_s", Double, nullable=False),
)
rollouts = Table(
    "rollouts",
    METADATA,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("model", String, nullable=False, index=True),
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
# What each router has measured of each arm in each step; added up they are what decides.
arm_figures = Table(
    "arm_figures",
    METADATA,
    Column("rollout_id", BigInteger, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("process", String, primary_key=True),
    Column("figures", Text, nullable=False),
    Column("at_s", Double, nullable=False),
)
# How the answers of a shadow compared with those of a release, as each router has seen it.
shadow_figures = Table(
    "shadow_figures",
    METADATA,
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
release_events = Table(
    "release_events",
    METADATA,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("at_s", Double, nullable=False),
    Column("model", String, nullable=False, index=True),
    Column("version", Integer),
    Column("what", String, nullable=False),
    Column("reason", Text, nullable=False),
)
# Which process loads, unloads and decides; the others only serve. One row, which it changes again and again.
control = Table(
    "control",
    METADATA,
    Column("name", String, primary_key=True),
    Column("process", String, nullable=False),
    Column("beat", BigInteger, nullable=False),
)
