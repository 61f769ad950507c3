"""Where an installation keeps its tenants, and how its store is opened by whoever may read those files."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.store.database import PepperError, Store, StoreAway, sqlite_url
from router.store.migrate import SchemaError
from router.tenants.administration import Administration
from router.tenants.keys import fingerprint, load_pepper
from router.tenants.spool import SpoolInUse
from router.tenants.tenancy import TenancySettings, ensure_local

if TYPE_CHECKING:
    from collections.abc import Iterator


class StoreUnusable(Exception):
    """The store cannot be opened: the message says what is wrong with which setting."""


def tenancy_settings(
    data_dir: Path, store_url: str = "", pepper_file: str = "", max_spool_bytes: int = 256 << 20
) -> TenancySettings:
    data_dir.mkdir(parents=True, exist_ok=True)
    return TenancySettings(
        store_url=store_url or sqlite_url(data_dir / "store.db"),
        pepper=load_pepper(Path(pepper_file).expanduser() if pepper_file else data_dir / "pepper"),
        spool_dir=data_dir / "spool",
        max_spool_bytes=max_spool_bytes,
    )


@contextmanager
def open_store(settings: TenancySettings) -> Iterator[Store]:
    store = Store(settings.store_url)
    try:
        store.prepare(fingerprint(settings.pepper))
        yield store
    finally:
        store.close()


@contextmanager
def open_administration(
    data_dir: Path, store_url: str = "", pepper_file: str = ""
) -> Iterator[Administration]:
    """For the command line, beside routers that run or without one; they learn of changes within a second."""
    with opening_store():
        settings = tenancy_settings(data_dir, store_url, pepper_file)
        with open_store(settings) as store:
            ensure_local(store)
            yield Administration(store, settings.pepper)


@contextmanager
def opening_store() -> Iterator[None]:
    """What keeps a store from being used, in words that name the setting."""
    try:
        yield
    except (PepperError, SchemaError, SpoolInUse) as error:
        raise StoreUnusable(f"store: {error}") from error
    except (sql.exc.ArgumentError, sql.exc.NoSuchModuleError) as error:
        allowed = "sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
        raise StoreUnusable(f"store_url: expected {allowed}") from error
    except ModuleNotFoundError as error:
        raise StoreUnusable(f"store_url: PostgreSQL needs the package psycopg: {error}") from error
    except StoreAway as error:
        reason = str(error.orig).partition("\n")[0] if isinstance(error, sql.exc.DBAPIError) else str(error)
        raise StoreUnusable(f"the store cannot be reached: {reason}") from error
