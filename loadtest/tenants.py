"""Who asks in a load test: tenants with their keys, their tiers and their parts of the users."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KEY_VARIABLE = "INFLIGHT_API_KEY"
TIERS = ("interactive", "standard", "batch")


class TenantsError(ValueError):
    """A file of tenants that cannot be used; the message says where and why."""


@dataclass(frozen=True)
class Tenant:
    """Without a key it is whoever the router takes this machine for."""

    name: str = "local"
    key: str = ""
    weight: float = 1.0
    tier: str = "standard"

    def __post_init__(self) -> None:
        if not self.name:
            raise TenantsError("a tenant has no name")
        if not 0 < self.weight < float("inf"):
            raise TenantsError(f"weight of {self.name} is {self.weight}; it must be above 0")
        if self.tier not in TIERS:
            raise TenantsError(f"tier of {self.name} is {self.tier!r}; allowed: {', '.join(TIERS)}")

    def __repr__(self) -> str:
        """A key has no place in logs."""
        return f"Tenant({self.name!r}, weight={self.weight:g}, tier={self.tier!r})"


def read_tenants(path: Path) -> list[Tenant]:
    """A JSON list of objects with `name` and, where they differ from the usual, `key`, `weight`, `tier`."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TenantsError(f"{path} cannot be read: {error}") from None
    if not isinstance(rows, list) or not rows:
        raise TenantsError(f"{path} does not hold a list of tenants")
    try:
        return [_tenant(row) for row in rows]
    except TenantsError as error:
        raise TenantsError(f"{path}: {error}") from None


def _tenant(row: Any) -> Tenant:
    types = {"name": (str,), "key": (str,), "weight": (int, float), "tier": (str,)}
    if not isinstance(row, dict):
        raise TenantsError(f"{row!r} is not an object with a name")
    for name, value in row.items():
        if name not in types:
            raise TenantsError(f"unknown field {name!r}; allowed: {', '.join(types)}")
        if not isinstance(value, types[name]) or isinstance(value, bool):
            raise TenantsError(f"{name} of {row.get('name', 'a tenant')!r} is of the wrong type")
    if "name" not in row:
        raise TenantsError("a tenant has no name")
    return Tenant(**row)


def write_tenants(path: Path, tenants: Sequence[Tenant]) -> None:
    """For this user's eyes alone: there are keys in it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump([asdict(tenant) for tenant in tenants], file, indent=1)


def tenants_of(path: str, environment: Mapping[str, str] = os.environ) -> list[Tenant]:
    """Those of a file, else one with the key in the environment, else one without any."""
    if path:
        return read_tenants(Path(path))
    return [Tenant(key=environment.get(KEY_VARIABLE, ""))]


class TenantMix:
    """Gives each new user its tenant, so that after any number of them the parts are as near as can be."""

    def __init__(self, tenants: Sequence[Tenant]) -> None:
        if not tenants:
            raise TenantsError("there are no tenants")
        self._tenants = tuple(tenants)
        self._credit = [0.0] * len(tenants)

    def next(self) -> Tenant:
        total = sum(tenant.weight for tenant in self._tenants)
        for number, tenant in enumerate(self._tenants):
            self._credit[number] += tenant.weight / total
        chosen = max(range(len(self._tenants)), key=self._credit.__getitem__)
        self._credit[chosen] -= 1.0
        return self._tenants[chosen]
