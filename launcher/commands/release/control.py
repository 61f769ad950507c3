"""Whether a router runs that carries out what is asked of releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.control.releases.lease import is_dead, read_holder

if TYPE_CHECKING:
    from sqlalchemy import Connection

NO_ROUTER = "No router is running: nothing will happen until one is started (`inflight up`)."


def has_router_in_control(connection: Connection) -> bool:
    """As far as one look tells: the row has a holder, and that is no dead process of this machine."""
    held = read_holder(connection)
    return held is not None and bool(held[0]) and not is_dead(held[0])
