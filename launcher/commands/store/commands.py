"""`inflight backup`, `inflight restore` and `inflight downgrade`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from client.terminal import confirm, print
from launcher.commands.installation import store_as_it_is
from launcher.commands.options import Config, DataDir
from launcher.commands.output import moment


def backup(
    file: Annotated[Path, typer.Argument(show_default=False, help="Overwritten if it exists.")],
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Write the whole store to FILE while routers run: tenants, keys, usage, releases, files, conversations.

    FILE is of one moment, and the same for SQLite and PostgreSQL. Keys are in it as hashes; the pepper that
    they are hashed with, and FILE is signed with, is not, nor are the files of releases: keep copies of
    `pepper` and `releases` of the state directory elsewhere, and `pepper` where FILE is not.
    """
    from router.store.backup import back_up
    from router.tenants.tenancy import backup_signer

    with store_as_it_is(data_dir, config) as (store, found):
        made = back_up(store, file, backup_signer(found.pepper))
    print(f"{file}: {made.rows:,} rows, schema {made.schema}, {file.stat().st_size:,} bytes")


def restore(
    file: Annotated[Path, typer.Argument(show_default=False)],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace what is in the store, which is lost.")
    ] = False,
    unsigned: Annotated[
        bool,
        typer.Option(
            "--unsigned",
            help="Restore a backup without a signature, as 0.8.0 and before made them: only if nobody else "
            "could write into it.",
        ),
    ] = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Fill an empty store, SQLite or PostgreSQL, with a backup of either; all of it or nothing.

    FILE has to be as it was when it was made: it is signed with the pepper. With `--replace` routers may be
    running: within a second they use what was restored. A backup of an older version is brought up to date;
    that needs an empty store.
    """
    from router.store.backup import restore as restore_store
    from router.tenants.tenancy import backup_signer

    with store_as_it_is(data_dir, config) as (store, found):
        signer = backup_signer(found.pepper)
        done = restore_store(store, file, signer, time.time(), replace=replace, unsigned=unsigned)
    print(f"{done.rows:,} rows restored from {file}, of schema {done.schema}{_made_at(done.made_s)}")


def _made_at(at_s: float | None) -> str:
    """Who can put an older backup in place of a newer one brings back what was revoked since."""
    return "" if at_s is None else f", made {moment(at_s)} UTC"


def downgrade(
    to: Annotated[str, typer.Option(metavar="SCHEMA", help="The schema that the older version knows.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Convert the store for an older version of Inflight, before that version is started.

    Nothing may be running. Data that only newer versions know is lost: back up first.
    """
    from router.store.migrate import downgrade as downgrade_schema

    if not yes:
        confirm(f"What schemas after {to} added will be lost. Continue?")
    with store_as_it_is(data_dir, config) as (store, _):
        was = downgrade_schema(store.engine, to)
    print(f"the store had schema {was} and has {to}")
