"""Tenants and keys, found by what people call them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.commands.installation import open_installation
from router.tenants.rbac import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.core.tenant import ApiKey, Organisation
    from router.tenants.administration import Administration


@contextmanager
def opened_administration(data_dir: Path | None, config: Path | None) -> Iterator[Administration]:
    with open_installation(data_dir, config) as installation:
        yield installation.administration


def find_tenant(admin: Administration, tenant: str) -> Organisation:
    there = admin.list_organisations(SYSTEM)
    for each in there:
        if tenant in (each.id, each.name):
            return each
    names = ", ".join(each.name for each in there)
    raise ValueError(f"there is no tenant {tenant!r}; there are: {names}")


def find_key(admin: Administration, name: str) -> ApiKey:
    """By id, prefix or name; a name that several keys have is refused."""
    every = [
        key
        for tenant in admin.list_organisations(SYSTEM)
        for key in admin.list_keys(SYSTEM, tenant.id)
        if name in (key.id, key.prefix, key.name)
    ]
    if len(every) != 1:
        found = "no key" if not every else f"{len(every)} keys"
        raise ValueError(f"{found} called {name!r}: `inflight keys list` shows ids")
    return every[0]
