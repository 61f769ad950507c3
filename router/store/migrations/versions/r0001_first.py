"""The first schema: organisations, users, keys, limits, prices, usage, audit, budgets."""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, LargeBinary, String, Text

revision = "0001"
down_revision = None


def upgrade() -> None:
    _create_tenants()
    _create_terms()
    _create_records()
    _create_budgets()
    _create_facts()
    op.execute("INSERT INTO counters VALUES ('changes', 0)")


def _create_tenants() -> None:
    op.create_table(
        "organisations",
        Column("id", String, primary_key=True),
        Column("name", String, unique=True),
        Column("created_s", Double, nullable=False),
        Column("deleted_s", Double),
        Column("version", BigInteger, nullable=False),
    )
    op.create_index("ix_organisations_version", "organisations", ["version"])
    op.create_table(
        "users",
        Column("id", String, primary_key=True),
        Column("organisation_id", String, sql.ForeignKey("organisations.id"), nullable=False),
        Column("name", String, nullable=False),
        Column("role", String, nullable=False),
        Column("created_s", Double, nullable=False),
        Column("platform_admin", Boolean, nullable=False),
        sql.UniqueConstraint("organisation_id", "name"),
    )
    op.create_table(
        "api_keys",
        Column("id", String, primary_key=True),
        Column("organisation_id", String, sql.ForeignKey("organisations.id"), nullable=False),
        Column("user_id", String, sql.ForeignKey("users.id"), nullable=False),
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
    op.create_index("ix_api_keys_organisation_id", "api_keys", ["organisation_id"])
    op.create_index("ix_api_keys_user_id", "api_keys", ["user_id"])


def _create_terms() -> None:
    op.create_table(
        "limits",
        Column("subject", String, primary_key=True),
        Column("organisation_id", String, sql.ForeignKey("organisations.id"), nullable=False),
        Column("requests_per_min", BigInteger),
        Column("request_burst", BigInteger),
        Column("tokens_per_min", BigInteger),
        Column("token_burst", BigInteger),
        Column("concurrent_requests", BigInteger),
        Column("monthly_budget", BigInteger),
        Column("budget_is_hard", Boolean, nullable=False),
    )
    op.create_index("ix_limits_organisation_id", "limits", ["organisation_id"])
    op.create_table(
        "prices",
        Column("model", String, primary_key=True),
        Column("prompt", BigInteger, nullable=False),
        Column("cached_prompt", BigInteger, nullable=False),
        Column("completion", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
    )


def _create_records() -> None:
    op.create_table(
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
    )
    op.create_index("usage_by_day", "usage", ["organisation_id", "day"])
    op.create_table(
        "audit",
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("at_s", Double, nullable=False),
        Column("actor", String, nullable=False),
        Column("organisation_id", String),
        Column("action", String, nullable=False),
        Column("target", String, nullable=False),
        Column("allowed", Boolean, nullable=False),
        Column("detail", Text, nullable=False),
    )
    op.create_index("ix_audit_organisation_id", "audit", ["organisation_id"])


def _create_budgets() -> None:
    op.create_table(
        "spending",
        Column("subject", String, primary_key=True),
        Column("month", String(7), primary_key=True),
        Column("spent", BigInteger, nullable=False),
    )
    op.create_table(
        "leases",
        Column("subject", String, primary_key=True),
        Column("month", String(7), primary_key=True),
        Column("process", String, primary_key=True),
        Column("amount", BigInteger, nullable=False),
        Column("expires_s", Double, nullable=False),
    )


def _create_facts() -> None:
    op.create_table(
        "counters",
        Column("name", String, primary_key=True),
        Column("value", BigInteger, nullable=False),
    )
    op.create_table(
        "facts",
        Column("name", String, primary_key=True),
        Column("value", Text, nullable=False),
    )
