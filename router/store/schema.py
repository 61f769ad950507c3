"""The tables of tenants, releases and objectives, the same ones for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sql
from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, LargeBinary, String, Table, Text

METADATA = sql.MetaData()
HOLDS_TEXT = "holds_text"  # of tables: what they held is to be gone for good when it is deleted
# SQLite numbers rows by itself for its own kind of integer only.
_SERIAL = BigInteger().with_variant(Integer, "sqlite")


def table(name: str, *columns: sql.schema.SchemaItem) -> Table:
    return Table(name, METADATA, *columns)


# `version` is the number of the last change to anything of the organisation: pollers read what is newer.
organisations = table(
    "organisations",
    Column("id", String, primary_key=True),
    Column("name", String, unique=True),
    Column("created_s", Double, nullable=False),
    Column("deleted_s", Double),
    Column("version", BigInteger, nullable=False, index=True),
)
users = table(
    "users",
    Column("id", String, primary_key=True),
    Column("organisation_id", String, sql.ForeignKey("organisations.id"), nullable=False),
    Column("name", String, nullable=False),
    Column("role", String, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("platform_admin", Boolean, nullable=False),
    sql.UniqueConstraint("organisation_id", "name"),
)
api_keys = table(
    "api_keys",
    Column("id", String, primary_key=True),
    Column("organisation_id", String, sql.ForeignKey("organisations.id"), nullable=False, index=True),
    Column("user_id", String, sql.ForeignKey("users.id"), nullable=False, index=True),
    Column("name", String, nullable=False),
    Column("prefix", String, nullable=False, unique=True),
    Column("digest", LargeBinary, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("models", Text),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double),
    Column("revoked_s", Double),
    Column("rotated_s", Double),
    Column("grace_s", Double, nullable=False),
    Column("previous_prefix", String, unique=True),
    Column("previous_digest", LargeBinary),
    # Of `scopes` those that only the platform hands out; apart, as routers of 0.8.0 do not know any.
    Column("platform_scopes", Text, nullable=False, server_default=""),
)
# `subject` is the id of an organisation or of a key; the last three are organisations' alone.
limits = table(
    "limits",
    Column("subject", String, primary_key=True),
    Column("organisation_id", String, sql.ForeignKey("organisations.id"), nullable=False, index=True),
    Column("requests_per_min", BigInteger),
    Column("request_burst", BigInteger),
    Column("tokens_per_min", BigInteger),
    Column("token_burst", BigInteger),
    Column("concurrent_requests", BigInteger),
    Column("monthly_budget", BigInteger),
    Column("budget_is_hard", Boolean, nullable=False),
    Column("weight", Integer),
    Column("slot_percent", Integer),
    Column("answers_cached_s", Integer),
)
prices = table(
    "prices",
    Column("model", String, primary_key=True),
    Column("prompt", BigInteger, nullable=False),
    Column("cached_prompt", BigInteger, nullable=False),
    Column("completion", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
)
# No foreign keys: a record that was spooled for a while may name a key or a user that is gone.
usage = table(
    "usage",
    Column("request_id", String, primary_key=True),
    Column("organisation_id", String, nullable=False),
    Column("user_id", String, nullable=False),
    Column("key_id", String, nullable=False),
    Column("model", String, nullable=False),
    Column("model_version", String, nullable=False),
    Column("started_s", Double, nullable=False),
    Column("ended_s", Double, nullable=False),
    Column("day", String(10), nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("outcome", String, nullable=False),
    Column("stages", Text, nullable=False),
    sql.Index("usage_by_day", "organisation_id", "day"),
)
audit = table(
    "audit",
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("at_s", Double, nullable=False),
    Column("actor", String, nullable=False),
    Column("organisation_id", String, index=True),
    Column("action", String, nullable=False),
    Column("target", String, nullable=False),
    Column("allowed", Boolean, nullable=False),
    Column("detail", Text, nullable=False),
    Column("key_id", String, nullable=False, server_default=""),
    Column("address", String, nullable=False, server_default=""),
)
spending = table(
    "spending",
    Column("subject", String, primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("spent", BigInteger, nullable=False),
)
leases = table(
    "leases",
    Column("subject", String, primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("process", String, primary_key=True),
    Column("amount", BigInteger, nullable=False),
    Column("expires_s", Double, nullable=False),
)
counters = table(
    "counters",
    Column("name", String, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
facts = table(
    "facts",
    Column("name", String, primary_key=True),
    Column("value", Text, nullable=False),
)

# Releases: what there is, who answers, and how rollouts went.
# `manifest` is the text that `digest` is of. `wanted`: it is to be loaded.
releases = table(
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
    Column("profile", Text),  # measured when it was first loaded
    # On how many of the servers it can take requests, as the router in control sees it.
    Column("replicas_up", Integer),
    Column("replicas", Integer),
)
# One row a model, replaced as a whole: that is what makes a change of the split atomic.
splits = table(
    "splits",
    Column("model", String, primary_key=True),
    Column("split", Text, nullable=False),
    Column("changed_s", Double, nullable=False),
)
rollouts = table(
    "rollouts",
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
arm_figures = table(
    "arm_figures",
    Column("rollout_id", BigInteger, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("process", String, primary_key=True),
    Column("figures", Text, nullable=False),
    Column("at_s", Double, nullable=False),
)
# How the answers of a shadow compared with those of a release, as each router has seen it.
shadow_figures = table(
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
# `what` of the event that says which version numbers have been used.
RELEASE_ADDED = "add"
release_events = table(
    "release_events",
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("at_s", Double, nullable=False),
    Column("model", String, nullable=False, index=True),
    Column("version", Integer),
    Column("what", String, nullable=False),
    Column("reason", Text, nullable=False),
)
# Which process loads, unloads and decides; the others only serve. One row, which it changes again and again.
control = table(
    "control",
    Column("name", String, primary_key=True),
    Column("process", String, nullable=False),
    Column("beat", BigInteger, nullable=False),
)

# Objectives and tuning: what answers are to take at most, what they take, what was done.
# `tier` is a tier's label. What is not asked for is null; a row that asks for nothing is not kept.
objectives = table(
    "objectives",
    Column("model", String, primary_key=True),
    Column("tier", String, primary_key=True),
    Column("first_token_s", Double),
    Column("inter_token_s", Double),
    Column("end_to_end_s", Double),
    Column("changed_s", Double, nullable=False),
)
# What each router has measured over its last minutes; added up they are what is shown.
objective_figures = table(
    "objective_figures",
    Column("router", String, primary_key=True),
    Column("model", String, primary_key=True),
    Column("tier", String, primary_key=True),
    Column("at_s", Double, nullable=False),
    Column("figures", Text, nullable=False),
)
# The newest thousand. `server` is null for what concerns all of them, `detail` what was measured.
tuning_decisions = table(
    "tuning_decisions",
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
tuning_pauses = table(
    "tuning_pauses",
    Column("model", String, primary_key=True),
    Column("paused_s", Double, nullable=False),
)

# Files of releases by their hashes, for hosts that share nothing but the store (release_files.py).
release_files = table(
    "release_files",
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("is_whole", Boolean, nullable=False),
)
release_file_pieces = table(
    "release_file_pieces",
    Column(
        "sha256", String(64), sql.ForeignKey("release_files.sha256", ondelete="CASCADE"), primary_key=True
    ),
    Column("number", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
