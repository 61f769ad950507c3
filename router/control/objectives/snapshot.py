"""The objectives as requests are held against them, as new as the store's."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from python_backend.wire.errors import InflightError
from python_backend.wire.tiers import Tier
from router.control.objectives.records import last_change, list_objectives
from router.core.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from router.store.access import StoreAccess

log = logging.getLogger(__name__)

_POLL_S = 0.5


class ObjectiveBook:
    """Refreshed twice a second. What nobody has set is an objective that asks for nothing."""

    def __init__(self, store: StoreAccess) -> None:
        self._store = store
        self._seen = -1
        self._set: dict[tuple[str, Tier], Objective] = {}
        self._known: dict[tuple[str, Tier], Objective] = {}  # those too that ask for nothing
        self.on_change: Callable[[list[Objective]], None] = lambda objectives: None

    async def run(self) -> None:
        """A task for as long as the router runs; while the store is away what is known holds on."""
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                await self.refresh()
            except InflightError:
                pass  # the store's absence is told by those who need it
            except Exception:
                log.exception("the objectives could not be read")

    async def refresh(self) -> None:
        found = await self._store.read(self._read)
        if found is not None:
            self._seen, listed = found
            self._set = {(each.model, each.tier): each for each in listed}
            self._known = dict(self._set)
            self.on_change(self.objectives)

    def _read(self, connection: Connection) -> tuple[int, list[Objective]] | None:
        newest = last_change(connection)
        return None if newest == self._seen else (newest, list_objectives(connection))

    @property
    def objectives(self) -> list[Objective]:
        """All that somebody has set."""
        return list(self._set.values())

    def of(self, model: str, tier: Tier) -> Objective:
        """`model` is one of the registry's names: each is kept."""
        found = self._known.get((model, tier))
        if found is None:
            found = self._known[model, tier] = Objective(model, tier)
        return found

    def inter_token_ms(self, model: str) -> dict[Tier, float | None]:
        """What the engines of a model are told to keep from token to token."""
        limits_s = {tier: self.of(model, tier).inter_token_s for tier in Tier}
        return {tier: None if limit is None else limit * 1000 for tier, limit in limits_s.items()}
