"""`inflight adapter`: LoRA adapters of models that are served."""

from __future__ import annotations

import typer

from launcher.commands.adapter import commands

adapter = typer.Typer(
    no_args_is_help=True,
    help="LoRA adapters, served as models BASE:NAME: add one to a model that is served, list, remove.",
)
adapter.command("add")(commands.add)
adapter.command("list")(commands.list_all)
adapter.command("remove")(commands.remove)


def add_to(app: typer.Typer) -> None:
    app.add_typer(adapter, name="adapter")
