"""What the administration is told: bodies and queries."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from router.core.tenant import HEAVIEST, Role, Scope
from router.tenants.administration import GRACE_S

_Day = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
_Id = Annotated[str, Meta(pattern=r"^[!-~]{1,64}$")]  # what a database can be asked for
_Amount = Annotated[int, Meta(ge=0)]


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class TenantBody(_Body, frozen=True, kw_only=True):
    name: str


class UserBody(_Body, frozen=True, kw_only=True):
    name: str
    role: Role = Role.MEMBER
    platform_admin: bool = False


class RoleBody(_Body, frozen=True, kw_only=True):
    role: Role


class KeyBody(_Body, frozen=True, kw_only=True):
    user_id: _Id
    name: str
    scopes: list[Scope] | None = None
    models: list[str] | None = None
    expires_at: _Amount | None = None


class RotateBody(_Body, frozen=True, kw_only=True):
    """For how long the present secret goes on; a day if not said."""

    grace_s: Annotated[float, Meta(ge=0, le=30 * 86400)] = GRACE_S


class LimitsBody(_Body, frozen=True, kw_only=True):
    """What is left out is unlimited; a burst that is left out is one minute's worth.

    `weight` and `slot_percent` are for tenants alone: their part of a model that others want too, 1 if not
    said, and the most of a model's places in the batch that they may take at a time.
    """

    requests_per_min: _Amount | None = None
    request_burst: _Amount | None = None
    tokens_per_min: _Amount | None = None
    token_burst: _Amount | None = None
    concurrent_requests: _Amount | None = None
    monthly_budget_microdollars: _Amount | None = None
    budget_is_hard: bool = True
    weight: Annotated[int, Meta(ge=1, le=HEAVIEST)] | None = None
    slot_percent: Annotated[int, Meta(ge=1, le=100)] | None = None


class PriceBody(_Body, frozen=True, kw_only=True):
    """Micro-dollars per million tokens; cached ones cost as others if not said."""

    prompt: _Amount
    completion: _Amount
    cached_prompt: _Amount | None = None


class UsageQuery(_Body, frozen=True, kw_only=True):
    """Days of UTC, both included; from the first of this month until today if not said."""

    since: _Day | None = None
    until: _Day | None = None
    by: str = "day,model"


class AuditQuery(_Body, frozen=True, kw_only=True):
    tenant: _Id | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
