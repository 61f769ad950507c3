"""The way to an installation's store, for one command about objectives or tuning."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from launcher.secret_files import with_secrets
from launcher.settings import SettingsError, load_settings, state_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.store.database import Store

EXIT_USAGE = 2


@contextmanager
def opened_store(data_dir: Path | None, config: Path | None) -> Iterator[Store]:
    """What is wrong is one line on stderr, and exit status 2."""
    # Imported here: the other commands need not wait for the database's packages.
    from router.tenants.audited import Forbidden
    from router.tenants.records import NotFound
    from router.tenants.tenancy import StoreUnusable, open_store, opening_store, tenancy_settings

    try:
        settings = load_settings(config, {"data_dir": data_dir})
        router = with_secrets(settings.router)
        with opening_store():
            state = state_dir(settings).absolute()
            found = tenancy_settings(state, router.get("store_url", ""), router.get("pepper_file", ""))
            with open_store(found) as store:
                yield store
    except (SettingsError, StoreUnusable, NotFound, Forbidden, ValueError, OSError) as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_USAGE) from None
