"""`inflight triton` and `inflight router`: the two halves of a stack, for containers and several machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.commands.deployment.commands import router, triton

if TYPE_CHECKING:
    import typer


def add_to(app: typer.Typer) -> None:
    app.command()(triton)
    app.command()(router)
