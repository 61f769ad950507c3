"""`inflight release`: the releases of a model, and which of them answers requests.

The commands work on the store itself: running routers see a change within a second, and the one in control
carries it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from launcher.commands.release import life_commands, registry_commands, traffic_commands

if TYPE_CHECKING:
    from collections.abc import Callable

release = typer.Typer(
    no_args_is_help=True,
    help="Releases of models: add, load, split traffic, roll out as a canary, roll back.",
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "add": registry_commands.add,
    "list": registry_commands.list_all,
    "show": registry_commands.show_one,
    "verify": registry_commands.verify,
    "remove": registry_commands.remove,
    "load": life_commands.load,
    "unload": life_commands.unload,
    "status": life_commands.status,
    "history": life_commands.history,
    "split": traffic_commands.split,
    "canary": traffic_commands.canary,
    "tolerance": traffic_commands.tolerance,
    "promote": traffic_commands.promote,
    "rollback": traffic_commands.rollback,
    "pause": traffic_commands.pause,
    "resume": traffic_commands.resume,
}
for _name, _command in _COMMANDS.items():
    release.command(_name)(_command)


def add_to(app: typer.Typer) -> None:
    app.add_typer(release, name="release")
