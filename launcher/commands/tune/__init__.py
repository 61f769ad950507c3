"""`inflight tune`: what was decided about queue delays and why, and which models are not tuned."""

from __future__ import annotations

import typer

from launcher.commands.tune import commands

tune = typer.Typer(
    no_args_is_help=True,
    help="How queue delays and engine steps are tuned to meet the objectives (`inflight slo`), and why.",
)
tune.command("explain")(commands.explain)
tune.command("history")(commands.history)
tune.command("pause")(commands.pause)
tune.command("resume")(commands.resume)


def add_to(app: typer.Typer) -> None:
    app.add_typer(tune, name="tune")
