"""What the Triton servers have of each release, as last seen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from router.control.releases.states import Presence
from router.triton.control import ControlError, ModelState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.control.releases.ports import Server
    from router.core.manifest import Manifest

    Index = Mapping[str, ModelState] | None  # None: the server does not answer

_TIMEOUT_S = 3.0
_IN_MEMORY = ("READY", "LOADING")
NOT_THERE = (Presence.ABSENT, Presence.PARTLY)


class ServerState:
    """`brings_files`: each server's host fetches the files of releases by itself; then they can be loaded."""

    def __init__(self, servers: Sequence[Server], *, brings_files: bool = False) -> None:
        self.servers = servers
        self._brings_files = brings_files
        self._indexes: dict[str, Index] = {}
        self._gone: set[str] = set()
        self._adapters: set[tuple[str, str]] = set()  # servers and releases whose adapters answer there

    async def look(self, manifests: Sequence[Manifest]) -> set[str]:
        """Names of servers that are back: they did not answer before, and may have been restarted."""
        servers = tuple(self.servers)  # meanwhile some may come or go
        looks = await asyncio.gather(
            *(_index(server, manifests) for server in servers), return_exceptions=True
        )
        back = set()
        for server, seen in zip(servers, looks, strict=True):
            if isinstance(seen, BaseException):
                self._indexes[server.name] = None
                if isinstance(seen, ControlError):
                    self._gone.add(server.name)
                elif not isinstance(seen, asyncio.TimeoutError):
                    raise seen
                continue
            self._indexes[server.name] = seen
            if server.name in self._gone:
                back.add(server.name)
        self._gone -= back
        return back

    async def look_again(self, server: Server) -> None:
        """At one server, because something was tried there; raises ControlError."""
        self._indexes[server.name] = await _index(server, ())

    def presence(self, manifest: Manifest, server: Server) -> Presence:
        index = self._indexes.get(server.name)
        can_load = server.control.can_control and not self._brings_files
        if index is None or (manifest.entry not in index and not can_load):
            return Presence.AWAY
        if manifest.base:
            base = index.get(manifest.entry)
            if base is None or not base.is_ready:  # who comes back has to be asked again
                self._adapters.discard((server.name, manifest.name))
            is_there = (server.name, manifest.name) in self._adapters
            return Presence.LOADED if is_there else Presence.ABSENT
        states = {member: index[member].state for member in manifest.members if member in index}
        if states.get(manifest.entry) == "READY":
            return Presence.LOADED
        is_partly = any(state in _IN_MEMORY for state in states.values())
        return Presence.PARTLY if is_partly else Presence.ABSENT

    def note_adapter(self, manifest: Manifest, server: Server, is_there: bool) -> None:
        """Triton knows nothing of adapters: whether one answers is known from asking it."""
        (self._adapters.add if is_there else self._adapters.discard)((server.name, manifest.name))

    def presences(self, manifest: Manifest, broken_on: set[str]) -> tuple[Presence, ...]:
        """Of all servers; BROKEN where loading it has failed on that server alone."""
        found = []
        for server in self.servers:
            presence = self.presence(manifest, server)
            is_broken = presence in NOT_THERE and server.name in broken_on
            found.append(Presence.BROKEN if is_broken else presence)
        return tuple(found)

    def is_loaded(self, manifest: Manifest) -> bool:
        """On some server, by its own word."""
        return any(self.presence(manifest, server) is Presence.LOADED for server in self.servers)

    def having(self, manifest: Manifest, *presences: Presence) -> list[Server]:
        return [server for server in self.servers if self.presence(manifest, server) in presences]

    def members_on(self, manifest: Manifest, server: Server) -> list[str]:
        """What is in memory there, what requests name first; of an adapter nothing that is its own."""
        if manifest.base:
            return []
        index = self._indexes.get(server.name) or {}
        members = reversed(manifest.members)
        return [each for each in members if each in index and index[each].state in _IN_MEMORY]


async def _index(server: Server, manifests: Sequence[Manifest]) -> Mapping[str, ModelState]:
    """Without the server's secret, only what it would take requests for."""
    if server.control.can_control:
        return await asyncio.wait_for(server.control.index(), _TIMEOUT_S)
    ready = await asyncio.gather(*(server.connection.ready(each.entry) for each in manifests))
    # A built-in one that is not ready is left out: its server is starting, and loads it itself.
    return {
        each.entry: ModelState("READY" if is_ready else "")
        for each, is_ready in zip(manifests, ready, strict=True)
        if is_ready or not each.is_built_in
    }
