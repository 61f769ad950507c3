"""`inflight loadtest`: load tests and their reports."""

from __future__ import annotations

import typer

from launcher.commands.loadtest.replay_command import replay
from launcher.commands.loadtest.report_commands import compare, report
from launcher.commands.loadtest.run_command import run

loadtest = typer.Typer(no_args_is_help=True, help="Load tests: send load, replay traces, read the reports.")
loadtest.command("run")(run)
loadtest.command("replay")(replay)
loadtest.command("report")(report)
loadtest.command("compare")(compare)


def add_to(app: typer.Typer) -> None:
    app.add_typer(loadtest, name="loadtest")
