"""The way to the store of an installation, and how what is in it is shown."""

from __future__ import annotations

import json
import math
import re
import sys
from contextlib import contextmanager
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from launcher.secret_files import with_secrets
from launcher.settings import SettingsError, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from router.core.tenant import ApiKey, Organisation
    from router.tenants.administration import Administration

Choice = TypeVar("Choice", bound=Enum)
DOLLAR = 1_000_000
_UNITS_S = {"m": 60, "h": 3600, "d": 86400}
DataDir = Annotated[Path | None, typer.Option(help="As of `inflight up`. [default: ~/.local/share/inflight]")]
Config = Annotated[
    Path | None, typer.Option(help="Settings file. [default: ./inflight.toml when it is there]")
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


@contextmanager
def administration(data_dir: Path | None, config: Path | None) -> Iterator[Administration]:
    """What is wrong is one line on stderr, and exit status 2."""
    # Imported here: the other commands need not wait for the database's packages.
    from router.tenants.audited import AlreadyThere
    from router.tenants.records import NotFound
    from router.tenants.tenancy import StoreUnusable, open_administration

    try:
        settings = load_settings(config, {"data_dir": data_dir})
        router = with_secrets(settings.router)
        state_dir = Path(router.get("state_dir") or settings.stack.data_dir)
        with open_administration(
            state_dir, router.get("store_url", ""), router.get("pepper_file", "")
        ) as admin:
            yield admin
    except (SettingsError, StoreUnusable, NotFound, AlreadyThere, ValueError, OSError) as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def prompt_log_dir(data_dir: Path | None, config: Path | None) -> Path | None:
    chosen = load_settings(config, {"data_dir": data_dir}).router.get("prompt_log_dir")
    return Path(chosen) if chosen else None


def find_tenant(admin: Administration, tenant: str) -> Organisation:
    from router.tenants.rbac import SYSTEM

    there = admin.list_organisations(SYSTEM)
    for each in there:
        if tenant in (each.id, each.name):
            return each
    names = ", ".join(each.name for each in there)
    raise ValueError(f"there is no tenant {tenant!r}; there are: {names}")


def find_key(admin: Administration, name: str) -> ApiKey:
    """By id, prefix or name; the name must be clear."""
    from router.tenants.rbac import SYSTEM

    every = [
        key
        for tenant in admin.list_organisations(SYSTEM)
        for key in admin.list_keys(SYSTEM, tenant.id)
        if name in (key.id, key.prefix, key.name)
    ]
    if len(every) != 1:
        found = "no key" if not every else f"{len(every)} keys"
        raise ValueError(f"{found} called {name!r}: `inflight keys list` shows ids")
    return every[0]


def one_of(kind: type[Choice], text: str) -> Choice:
    try:
        return kind(text)
    except ValueError:
        allowed = ", ".join(each.value for each in kind)
        raise ValueError(f"{kind.__name__.lower()} {text!r}: allowed are {allowed}") from None


def show(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    # A file or a pipe has no width to keep to.
    Console(width=None if sys.stdout.isatty() else 240).print(table)


def show_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=lambda other: sorted(other)))


def dollars(microdollars: int | None) -> str:
    return "" if microdollars is None else f"${microdollars / DOLLAR:,.6f}".rstrip("0").rstrip(".")


def microdollars(amount: float) -> int:
    if not math.isfinite(amount):
        raise ValueError(f"{amount} is not a number of dollars")
    return round(amount * DOLLAR)


def moment(at_s: float | None) -> str:
    if at_s is None:
        return ""
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d %H:%M")


def duration_s(text: str) -> float:
    if not (parts := re.fullmatch(r"(\d+)([mhd])", text)):
        raise ValueError(f"{text!r} is not a duration; for instance 30m, 12h or 90d")
    return int(parts[1]) * _UNITS_S[parts[2]]
