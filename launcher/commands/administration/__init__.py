"""`inflight tenants`, `keys`, `prices`, `usage` and `audit`: administration, on the store itself.

Whoever can read the data directory needs no key. Routers that run learn of a change within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.commands.administration.accounts import audit, prices, usage
from launcher.commands.administration.keys import keys
from launcher.commands.administration.tenants import tenants

if TYPE_CHECKING:
    import typer


def add_to(app: typer.Typer) -> None:
    app.add_typer(tenants, name="tenants")
    app.add_typer(keys, name="keys")
    app.add_typer(prices, name="prices")
    app.command()(usage)
    app.command()(audit)
