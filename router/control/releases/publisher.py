"""Publishes the releases of the store in the snapshot that requests read."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from router.control.recorder import repeat
from router.control.releases import records
from router.control.releases.states import State
from router.control.releases.verification import clean_and_verify
from router.control.releases.writes import COUNTER
from router.routing.models import Lineup, Served

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sqlalchemy import Connection

    from router.control.releases.records import Release
    from router.core.manifest import Manifest
    from router.routing.models import Registry
    from router.routing.replicas import Fleet, ReplicaSet
    from router.routing.split import ModelSplit
    from router.store.database import StoreAccess

log = logging.getLogger(__name__)

_POLL_S = 0.5
_COMING = (State.LOADING, State.WARMING)


class ReleasePublisher:
    """Reads the store twice a second; the releases and the split of a model are published together.

    `prepare` reads the files of a release, in a thread; what it returns is given the replicas.
    `main` names the models without which the router is not ready.
    """

    def __init__(
        self,
        store: StoreAccess,
        fleet: Fleet,
        registry: Registry,
        prepare: Callable[[Manifest], Callable[[ReplicaSet], Served]],
        main: frozenset[str],
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._registry = registry
        self._prepare = prepare
        self._main = main
        self._served: dict[str, Served] = {}  # by the release's name
        self._unservable: set[str] = set()
        self._seen = -1
        self.releases: tuple[Release, ...] = ()
        self.splits: Mapping[str, ModelSplit] = {}

    async def run(self) -> None:
        """A task for as long as the router runs; while the store is unreachable nothing changes."""
        await repeat(self.refresh, _POLL_S, "the releases could not be read")

    def find_tampering(self, name: str, releases_dir: Path) -> str | None:
        """What is wrong with the files of a release; reads them, so not for the event loop."""
        for each in self.releases:
            if each.manifest.name == name:
                return clean_and_verify(each.manifest, each.digest, releases_dir)
        return None

    async def refresh(self) -> None:
        newest = await self._store.last_change(COUNTER)
        if newest == self._seen:
            return
        # As new as that, or newer: then it is read again.
        self.releases, self.splits = await self._store.read(_releases_and_splits)
        is_done = await self._publish()
        self._seen = newest if is_done else -1

    async def _publish(self) -> bool:
        """Whether nothing is left to do until the store changes again."""
        lineups: dict[str, Lineup] = {}
        kept: dict[str, Served] = {}
        is_done = True
        for model, split in self.splits.items():
            there: dict[int, Served] = {}
            for release in self.releases:
                if release.manifest.model == model and is_served(release, split):
                    served = await self._serve(release)
                    if served is None:
                        is_done = False
                    else:
                        there[release.version] = kept[release.manifest.name] = served
            lineups[model] = Lineup(model, there, split, model in self._main)
        self._registry.publish(lineups)
        self._served = kept
        known = {each.manifest.name for each in self.releases if each.state is not State.GONE}
        left = [name for name in self._fleet.sets if name not in known]
        for name in left:
            # One with requests in flight is still probed: they would hang if its process died.
            if all(replica.is_drained for replica in self._fleet.sets[name].replicas):
                self._fleet.forget(name)
        return is_done and not any(name in self._fleet.sets for name in left)

    async def _serve(self, release: Release) -> Served | None:
        name = release.manifest.name
        if (served := self._served.get(name)) is not None:
            return served
        try:
            make = await asyncio.to_thread(self._prepare, release.manifest)
        except Exception as error:
            if name not in self._unservable:
                log.error("%s cannot be served by this router: %s", name, error)
            self._unservable.add(name)
            return None
        self._unservable.discard(name)
        return make(self._fleet.set_of(release.manifest))


def _releases_and_splits(connection: Connection) -> tuple[tuple[Release, ...], Mapping[str, ModelSplit]]:
    return tuple(records.list_releases(connection)), records.list_splits(connection)


def is_served(release: Release, split: ModelSplit) -> bool:
    """What is loaded; and what gets requests and is on its way, which is waited for and not unknown."""
    if not release.wanted or release.state is State.GONE:
        return False
    if release.state is State.READY or release.manifest.is_built_in:
        return release.state is not State.DRAINING
    return release.state in _COMING and split.weight_of(release.version) > 0
