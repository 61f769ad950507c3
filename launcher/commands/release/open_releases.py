"""The way to an installation's releases, for one command."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.secret_files import with_secrets
from launcher.settings import SettingsError, load_settings, state_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.packaging.releases.directories import Places
    from launcher.settings import Settings
    from router.control.releases.commands import ReleaseCommands

EXIT_FAILED = 1
EXIT_USAGE = 2
ReleaseName = Annotated[str, typer.Argument(metavar="MODEL@VERSION", show_default=False)]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", show_default=False)]


@dataclass(frozen=True)
class Desk:
    settings: Settings
    commands: ReleaseCommands
    places: Places

    def say_if_nobody_acts(self) -> None:
        """Wishes are brought about by a router; without one they wait in the store."""
        from launcher.commands.release.control import NOBODY_ACTS, somebody_is_in_control

        with self.commands.look() as connection:
            if not somebody_is_in_control(connection):
                print(NOBODY_ACTS)


@contextmanager
def desk(data_dir: Path | None, config: Path | None) -> Iterator[Desk]:
    """What is wrong is one line on stderr, and exit status 2."""
    # Imported here: the other commands need not wait for the database's packages.
    from launcher.failure import ProcessFailed
    from launcher.packaging.models.checkpoint import CheckpointError
    from launcher.packaging.releases.directories import Places
    from launcher.packaging.repository import RepositoryError
    from launcher.packaging.triton_runtime import RuntimeMissing
    from python_backend.wire.errors import InflightError
    from router.control.releases.commands import ReleaseCommands
    from router.tenants.audited import AlreadyThere, Forbidden
    from router.tenants.rbac import SYSTEM
    from router.tenants.records import NotFound
    from router.tenants.tenancy import StoreUnusable, open_store, opening_store, tenancy_settings

    refusals = (SettingsError, StoreUnusable, NotFound, AlreadyThere, Forbidden, ValueError, OSError)
    unusable = (CheckpointError, RepositoryError, RuntimeMissing, InflightError)
    try:
        settings = load_settings(config, {"data_dir": data_dir})
        router = with_secrets(settings.router)
        state = state_dir(settings).absolute()
        with opening_store():
            found = tenancy_settings(state, router.get("store_url", ""), router.get("pepper_file", ""))
            with open_store(found) as store:
                yield Desk(settings, ReleaseCommands(store, SYSTEM), Places(state / "releases"))
    except (*refusals, *unusable) as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_USAGE) from None
    except ProcessFailed as error:
        print("\n  ".join([f"inflight: {error}", *error.lines]), file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None


def release_named(text: str) -> tuple[str, int]:
    from router.core.manifest import split_name

    model, version = model_named(split_name(text)[0]), split_name(text)[1]
    if version is None:
        raise ValueError(f"{text!r} names no version: write {text}@VERSION (`inflight release list`)")
    return model, version


def model_named(text: str) -> str:
    from router.core.manifest import MODEL_NAME

    if not MODEL_NAME.fullmatch(text):
        allowed = "1 to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or a digit"
        raise ValueError(f"{text!r} cannot be the name of a model; allowed: {allowed}")
    return text
