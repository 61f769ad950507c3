"""The tables, the same ones for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sql
from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, LargeBinary, String, Table, Text

METADATA = sql.MetaData()
# SQLite numbers rows by itself for its own kind of integer only.
_SERIAL = BigInteger().with_variant(Integer, "sqlite")

# `version` is the number of the last change to anything of the organisation: pollers read what is newer.
organisations = Table(
    "organisations",
    METADATA,
    Column("id", String, primary_key=True),
    Column("name", String, unique=True),
    Column("created_s", Double, nullable=False),
    Column("deleted_s", Double),
    Column("version", BigInteger, nullable=False, index=True),
)
users = Table(
    "users",
    METADATA,
    Column("id", String, primary_key=True),
    Column("organisation_id", String, sql.ForeignKey("organisations.id"), nullable=False),
    Column("name", String, nullable=False),
    Column("role", String, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("platform_admin", Boolean, nullable=False),
    sql.UniqueConstraint("organisation_id", "name"),
)
api_keys = Table(
    "api_keys",
    METADATA,
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
)
# `subject` is the id of an organisation or of a key; `weight` and `slot_percent` are organisations' alone.
limits = Table(
    "limits",
    METADATA,
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
)
prices = Table(
    "prices",
    METADATA,
    Column("model", String, primary_key=True),
    Column("prompt", BigInteger, nullable=False),
    Column("cached_prompt", BigInteger, nullable=False),
    Column("completion", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
)
# No foreign keys: a record that was spooled for a while may name a key or a user that is gone.
usage = Table(
    "usage",
    METADATA,
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
audit = Table(
    "audit",
    METADATA,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("at_s", Double, nullable=False),
    Column("actor", String, nullable=False),
    Column("organisation_id", String, index=True),
    Column("action", String, nullable=False),
    Column("target", String, nullable=False),
    Column("allowed", Boolean, nullable=False),
    Column("detail", Text, nullable=False),
)
spending = Table(
    "spending",
    METADATA,
    Column("subject", String, primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("spent", BigInteger, nullable=False),
)
leases = Table(
    "leases",
    METADATA,
    Column("subject", String, primary_key=True),
    Column("month", String(7), primary_key=True),
    Column("process", String, primary_key=True),
    Column("amount", BigInteger, nullable=False),
    Column("expires_s", Double, nullable=False),
)
counters = Table(
    "counters",
    METADATA,
    Column("name", String, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
facts = Table(
    "facts",
    METADATA,
    Column("name", String, primary_key=True),
    Column("value", Text, nullable=False),
)
