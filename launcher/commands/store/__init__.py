"""`inflight backup`, `restore` and `downgrade`: the store as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.commands.store.commands import backup, downgrade, restore

if TYPE_CHECKING:
    import typer


def add_to(app: typer.Typer) -> None:
    app.command()(backup)
    app.command()(restore)
    app.command()(downgrade)
