"""`inflight top`: what a router does at the moment, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.commands.top.command import top

if TYPE_CHECKING:
    import typer


def add_to(app: typer.Typer) -> None:
    app.command()(top)
