"""`inflight runtime`: packages that serve what our own engine does not, each in a Python of its own."""

from __future__ import annotations

import typer

from launcher.commands.runtime import commands

runtime = typer.Typer(
    no_args_is_help=True,
    help="Runtimes beside our own engine, such as vLLM: install one, register one that is installed, list "
    "them.",
)
runtime.command("install")(commands.install)
runtime.command("use")(commands.use)
runtime.command("list")(commands.list_runtimes)
runtime.command("remove")(commands.remove)


def add_to(app: typer.Typer) -> None:
    app.add_typer(runtime, name="runtime")
