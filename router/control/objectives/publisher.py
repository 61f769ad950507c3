"""Publishes the objectives of the store in the snapshot that requests read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router.control.objectives.records import COUNTER, list_objectives
from router.control.recorder import repeat

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from router.core.objective import Objective
    from router.routing.models import Published
    from router.store.database import StoreAccess

_POLL_S = 0.5


class ObjectivePublisher:
    """Reads the store twice a second; `on_change` gets all that are set whenever one has changed."""

    def __init__(
        self,
        store: StoreAccess,
        published: Published,
        on_change: Callable[[Collection[Objective]], None] = lambda objectives: None,
    ) -> None:
        self._store = store
        self._published = published
        self._on_change = on_change
        self._seen = -1

    async def run(self) -> None:
        """A task for as long as the router runs; while the store is unreachable nothing changes."""
        await repeat(self.refresh, _POLL_S, "the objectives could not be read")

    async def refresh(self) -> None:
        newest = await self._store.last_change(COUNTER)
        if newest == self._seen:
            return
        listed = await self._store.read(list_objectives)  # as new as that, or newer: then it is read again
        self._seen = newest
        objectives = {(each.model, each.tier): each for each in listed}
        self._published.publish(replace(self._published.current, objectives=objectives))
        self._on_change(listed)
