"""The tenant of these measurements: a key with every limit set, high enough never to be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.core.tenant import Limits, Price, Role
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration

if TYPE_CHECKING:
    from pathlib import Path

_PLENTY = 1_000_000_000
_LIMITS = Limits(
    requests_per_min=_PLENTY,
    tokens_per_min=_PLENTY * 1000,
    concurrent_requests=100_000,
    monthly_budget=_PLENTY * 100_000,
)


def make_tenant(data_dir: Path, model: str) -> str:
    """Returns the key's text."""
    with open_administration(data_dir) as admin:
        organisation = admin.create_organisation(SYSTEM, "bench")
        user = admin.create_user(SYSTEM, organisation.id, "bench", Role.MEMBER)
        key, text = admin.create_key(SYSTEM, organisation.id, user.id, "bench")
        admin.set_limits(SYSTEM, organisation.id, _LIMITS)
        admin.set_limits(SYSTEM, organisation.id, _LIMITS, key.id)
        admin.set_price(SYSTEM, Price(model, prompt=150_000, cached_prompt=75_000, completion=600_000))
    return text
