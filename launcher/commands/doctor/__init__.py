"""`inflight doctor`: checks this machine, this installation and what runs, and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.commands.doctor.command import doctor

if TYPE_CHECKING:
    import typer


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)
