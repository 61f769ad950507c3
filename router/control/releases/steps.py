"""The steps of one release: loaded, warmed, drained, unloaded on the servers, and written to the store."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import sqlalchemy as sql

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.releases import records, writes
from router.control.releases.inspection import missing_program, scrub
from router.control.releases.lease import LostControl
from router.control.releases.load import LoadFailed, ServerLost, free_memory, load
from router.control.releases.memory_fit import FreeMemory, misfit
from router.control.releases.server_state import NOT_THERE
from router.control.releases.states import Action, Presence, State
from router.control.releases.verification import clean_and_verify
from router.control.releases.warm_up import WarmingFailed, warm_release
from router.control.releases.writes import Overtaken, is_release
from router.core.address import is_on_this_machine
from router.grpc.status import GrpcError
from router.store.schema import releases
from router.triton.control import ControlError
from router.triton.messages import drop_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from router.control.releases.lease import Lease
    from router.control.releases.ports import Server
    from router.control.releases.records import Release
    from router.control.releases.server_state import ServerState
    from router.core.manifest import Manifest
    from router.store.database import StoreAccess

    Profile = dict[str, float]
    Warm = Callable[[Server, Manifest], Awaitable[Profile]]

log = logging.getLogger(__name__)

_MOST_LOSSES = 2
_DROP_TIMEOUT_S = 5.0
_LOST = "Triton became unreachable before it was loaded"


@dataclass(slots=True)
class Notes:
    """What is remembered of one release between two turns; losing it costs a repetition."""

    draining_since_s: float | None = None
    not_before_s: float = 0.0
    broken_jobs: int = 0
    losses: int = 0  # servers that went away while they loaded it
    retries: int = 0  # after servers were back
    may_retry: bool = False
    broken_on: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Tools:
    """What the steps use, for tests to replace."""

    releases_dir: Path
    warm: Warm = warm_release
    free_memory: Callable[[], FreeMemory] = free_memory
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    # Whether files are verified here. Where hosts have disks of their own, each verifies what it fetches.
    is_shared: bool = True


class ReleaseSteps:
    """Loads go one after the other, so that what is free of the memory is known.

    Whatever is written is written only while this router holds the lease, and only where nobody else has
    changed the release to something that it does not follow.
    """

    def __init__(self, store: StoreAccess, lease: Lease, state: ServerState, tools: Tools) -> None:
        self._store = store
        self._lease = lease
        self._state = state
        self._tools = tools
        self._in_turn = asyncio.Lock()  # first to begin, first to load, however long the store takes
        self._one_load = asyncio.Lock()

    async def do(self, action: Action, release: Release, notes: Notes) -> None:
        manifest = release.manifest
        if action is Action.LOAD:
            await self._load(release, notes)
        elif action is Action.FILL:
            await self._fill(release, notes)
        elif action is Action.ACCEPT:
            await self._move(manifest, State.READY)
        elif action is Action.DRAIN:
            await self._move(manifest, State.DRAINING)
        elif action is Action.UNLOAD:
            await self._unload(manifest)
            if release.state not in (State.FAILED, State.UNLOADED):
                await self._move(manifest, State.UNLOADED)

    async def _load(self, release: Release, notes: Notes) -> None:
        manifest = release.manifest
        notes.retries += notes.may_retry
        notes.may_retry = False
        try:
            # Before its turn to load comes: until then it may still be called ready, from before a restart.
            async with self._in_turn:
                await self._move(manifest, State.LOADING)
            async with self._one_load:
                profile = await self._load_and_warm(release, notes)
        except ServerLost as error:
            notes.losses += 1
            if notes.losses > _MOST_LOSSES:
                await self._fail(manifest, f"{error}, {notes.losses} times")
            else:
                await self._move(manifest, State.UNLOADED, str(error))
        except (LoadFailed, WarmingFailed) as error:
            await self._fail(manifest, str(error))
        except (LostControl, Overtaken, InflightError):
            raise
        except Exception:
            log.exception("%s could not be loaded", manifest.name)
            await self._fail(manifest, "the router failed: see its log")
        else:
            notes.losses = 0
            await self._move(manifest, State.READY, profile=profile)

    async def _load_and_warm(self, release: Release, notes: Notes) -> Profile:
        manifest = release.manifest
        if manifest.base:
            await self._require_base(manifest)
        servers = self._state.having(manifest, Presence.LOADED)
        missing = self._state.having(manifest, *NOT_THERE)
        await self._check(release, missing)
        began_s = self._tools.monotonic()
        servers += await self._load_on(release, missing, notes)
        load_s = self._tools.monotonic() - began_s
        await self._move(manifest, State.WARMING)
        profiles = [await self._warmed(manifest, server, notes) for server in servers]
        measured = [profile for profile in profiles if not isinstance(profile, WarmingFailed)]
        if not measured:
            raise next((each for each in profiles if isinstance(each, WarmingFailed)), ServerLost(_LOST))
        return {**measured[0], "load_s": load_s}

    async def _require_base(self, manifest: Manifest) -> None:
        """The release that an adapter is an addition to; one that is on its way is waited for."""
        base = await self._store.read(partial(_base_of, manifest))
        if base is None or not base.wanted:
            raise LoadFailed(f"it is an adapter of {manifest.base}, which is not loaded")
        if base.state is not State.READY:
            raise InflightError(ErrorKind.OVERLOADED, f"{manifest.base}, its base, is {base.state.value}")

    async def _fill(self, release: Release, notes: Notes) -> None:
        """Where it fails it is left alone: other servers have the release, and it is ready."""
        manifest = release.manifest
        absent_from = self._state.having(manifest, *NOT_THERE)
        missing = [server for server in absent_from if server.name not in notes.broken_on]
        try:
            async with self._one_load:
                await self._check(release, missing)
                loaded = await self._load_on(release, missing, notes)
            for server in loaded:
                await self._warmed(manifest, server, notes)
        except (LoadFailed, ServerLost) as error:
            log.warning("%s is ready, but not on every server: %s", manifest.name, error)
            notes.broken_on |= {server.name for server in missing}
            await self._clean(manifest, missing)

    async def _check(self, release: Release, missing: list[Server]) -> None:
        manifest = release.manifest
        fault = await self._tampering(release)
        if self._tools.is_shared:
            fault = fault or await asyncio.to_thread(missing_program, manifest, self._tools.releases_dir)
        if fault is None and all(is_on_this_machine(server.url) for server in missing):
            free = await asyncio.to_thread(self._tools.free_memory)
            fault = misfit(manifest.needs, len(missing), free)
        if fault is not None:
            raise LoadFailed(fault)

    async def _tampering(self, release: Release) -> str | None:
        directory = self._tools.releases_dir
        if not self._tools.is_shared:
            return None
        return await asyncio.to_thread(clean_and_verify, release.manifest, release.digest, directory)

    async def _load_on(self, release: Release, missing: list[Server], notes: Notes) -> list[Server]:
        """Those that have it now; raises where there are none."""
        if not missing:
            return []
        manifest = release.manifest
        self._require_control()
        loaded, failed_on = await load(manifest, missing)
        notes.broken_on |= {server.name for server in failed_on}
        await self._clean(manifest, failed_on)
        notes.broken_on -= {server.name for server in loaded}
        # What was changed while Triton read it has been seen by nobody; unchanged files are not read again.
        if (fault := await self._tampering(release)) is not None:
            raise LoadFailed(fault)
        return loaded

    async def _warmed(self, manifest: Manifest, server: Server, notes: Notes) -> Profile | WarmingFailed:
        """Where it does not answer as it should, it is unloaded from that server."""
        try:
            profile = await self._tools.warm(server, manifest)
            if manifest.base:
                self._state.note_adapter(manifest, server, True)
            return profile
        except WarmingFailed as error:
            log.warning("%s failed its warm-up on %s: %s", manifest.name, server.name, error)
            notes.broken_on.add(server.name)
            await self._clean(manifest, [server])
            return error

    async def _fail(self, manifest: Manifest, reason: str) -> None:
        """The failure is recorded first, then what was partly loaded is unloaded."""
        log.error("%s has failed: %s", manifest.name, reason)
        await self._move(manifest, State.FAILED, scrub(reason))
        await self._clean(manifest, self._state.servers)

    async def _clean(self, manifest: Manifest, servers: Sequence[Server]) -> None:
        """Unloads members that were loaded before one that could not be; the next turn sees what is left."""
        for server in tuple(servers):
            try:
                if server.control.can_control:
                    await self._state.look_again(server)
                    await self._unload_from(manifest, server)
            except (ControlError, asyncio.TimeoutError) as error:
                log.warning("%s is not unloaded from %s yet: %s", manifest.name, server.name, error)

    async def _unload(self, manifest: Manifest) -> None:
        for server in tuple(self._state.servers):
            await self._unload_from(manifest, server)

    async def _unload_from(self, manifest: Manifest, server: Server) -> None:
        for member in self._state.members_on(manifest, server):
            self._require_control()
            await server.control.unload(member)
        if manifest.base:
            self._require_control()
            self._state.note_adapter(manifest, server, False)
            await _drop(manifest, server)

    def _require_control(self) -> None:
        if not self._lease.is_held:
            raise LostControl("this router is no longer in control")

    async def _move(
        self, manifest: Manifest, state: State, reason: str = "", profile: Profile | None = None
    ) -> None:
        def act(connection: Connection) -> None:
            writes.bump(self._store.store, connection)
            self._lease.check(connection)
            writes.move(connection, self._tools.clock(), manifest, state, reason)
            if profile is not None:
                _keep_profile(connection, manifest, profile)

        await self._store.write(act)


async def _drop(manifest: Manifest, server: Server) -> None:
    """The engine would give it up by itself, but only when it needs the place."""
    stream = server.connection.infer(drop_request(manifest.engine, manifest.adapter), _DROP_TIMEOUT_S)
    try:
        async for _ in stream:
            pass
    except GrpcError as error:
        log.warning(
            "%s: the engine on %s may keep it loaded for a while: %s", manifest.name, server.name, error
        )
    finally:
        stream.cancel()


def _base_of(manifest: Manifest, connection: Connection) -> Release | None:
    return records.base_of(manifest, records.list_releases(connection))


def _keep_profile(connection: Connection, manifest: Manifest, profile: Profile) -> None:
    """The first one stays: it is what later ones are held against."""
    is_new = is_release(manifest.model, manifest.version) & releases.c.profile.is_(None)
    connection.execute(sql.update(releases).where(is_new).values(profile=json.dumps(profile)))
