"""An installation's store, opened for one command."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import typer

from client.terminal import print
from launcher.failure import ProcessFailed, Unusable
from launcher.secret_files import with_secrets
from launcher.settings import SettingsError, load_settings, state_dir
from python_backend.wire.errors import InflightError
from router.tenants.rbac import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.packaging.releases.directories import ReleaseDirectories
    from launcher.settings import Settings
    from router.control.objectives.commands import ObjectiveCommands
    from router.control.releases.commands import ReleaseCommands
    from router.control.tuning.commands import TuningCommands
    from router.store.database import Store
    from router.tenants.administration import Administration
    from router.tenants.tenancy import TenancySettings

EXIT_FAILED = 1
EXIT_USAGE = 2
# Packages of the database take a while to import, and not every command needs each part: hence the imports
# inside of functions.


@dataclass(frozen=True)
class Installation:
    """An open store and what commands may do with it: whoever can read its files needs no key."""

    settings: Settings
    store: Store
    pepper: bytes

    @cached_property
    def administration(self) -> Administration:
        from router.tenants.administration import Administration
        from router.tenants.tenancy import ensure_local

        ensure_local(self.store)
        return Administration(self.store, self.pepper)

    @property
    def releases(self) -> ReleaseCommands:
        from router.control.releases.commands import ReleaseCommands

        return ReleaseCommands(self.store, SYSTEM)

    @property
    def release_directories(self) -> ReleaseDirectories:
        from launcher.packaging.releases.directories import ReleaseDirectories

        return ReleaseDirectories(state_dir(self.settings).absolute() / "releases")

    @property
    def objectives(self) -> ObjectiveCommands:
        from router.control.objectives.commands import ObjectiveCommands

        return ObjectiveCommands(self.store, SYSTEM)

    @property
    def tuning(self) -> TuningCommands:
        from router.control.tuning.commands import TuningCommands

        return TuningCommands(self.store, SYSTEM)

    def has_router_in_control(self) -> bool:
        from launcher.commands.release.control import has_router_in_control

        with self.store.read() as connection:
            return has_router_in_control(connection)

    def warn_without_router(self) -> None:
        """A router carries out what is asked of releases; until one runs, it is only noted in the store."""
        if not self.has_router_in_control():
            from launcher.commands.release.control import NO_ROUTER

            print(NO_ROUTER)


@contextmanager
def open_installation(data_dir: Path | None, config: Path | None) -> Iterator[Installation]:
    """What cannot be used is one line on stderr and exit status 2; a program that failed, exit status 1."""
    from router.tenants.tenancy import open_store

    with _telling_why(), _found(data_dir, config) as (settings, found), open_store(found) as store:
        yield Installation(settings, store, found.pepper)


@contextmanager
def store_as_it_is(data_dir: Path | None, config: Path | None) -> Iterator[tuple[Store, TenancySettings]]:
    """Whatever schema it has, none included."""
    from router.store.database import Store

    with _telling_why(), _found(data_dir, config) as (_, found):
        store = Store(found.store_url)
        try:
            yield store, found
        finally:
            store.close()


@contextmanager
def _found(data_dir: Path | None, config: Path | None) -> Iterator[tuple[Settings, TenancySettings]]:
    from router.tenants.tenancy import opening_store, tenancy_settings

    settings = load_settings(config, {"data_dir": data_dir})
    router = with_secrets(settings.router)
    with opening_store():
        state = state_dir(settings).absolute()
        yield (
            settings,
            tenancy_settings(state, router.get("store_url", ""), router.get("pepper_file", "")),
        )


@contextmanager
def _telling_why() -> Iterator[None]:
    from router.store.backup import BackupError
    from router.tenants.audited import AlreadyThere, Forbidden
    from router.tenants.records import NotFound
    from router.tenants.tenancy import StoreUnusable

    refusals = (SettingsError, StoreUnusable, BackupError, NotFound, AlreadyThere, Forbidden)
    try:
        yield
    except (*refusals, ValueError, OSError, Unusable, InflightError) as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_USAGE) from None
    except ProcessFailed as error:
        print("\n  ".join([f"inflight: {error}", *error.lines]), file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None
