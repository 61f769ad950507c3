"""`inflight slo`: latency objectives, beside what is measured.

The commands work on the store itself: running routers see a change within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from launcher.commands.slo import commands

if TYPE_CHECKING:
    from collections.abc import Callable

slo = typer.Typer(
    no_args_is_help=True,
    help="Latency objectives of models: set them, and see whether they are met.",
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "set": commands.set_objective,
    "show": commands.show_objectives,
    "clear": commands.clear_objective,
}
for _name, _command in _COMMANDS.items():
    slo.command(_name)(_command)


def add_to(app: typer.Typer) -> None:
    app.add_typer(slo, name="slo")
