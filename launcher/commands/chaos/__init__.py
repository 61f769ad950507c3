"""`inflight chaos`: a stack of its own, broken on purpose."""

from __future__ import annotations

import typer

from launcher.commands.chaos.command import chaos


def add_to(app: typer.Typer) -> None:
    app.command()(chaos)
