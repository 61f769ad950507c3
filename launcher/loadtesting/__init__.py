"""`inflight loadtest`: load tests and their reports."""

from __future__ import annotations

import typer

from launcher.loadtesting.command import run
from launcher.loadtesting.replaying import replay
from launcher.loadtesting.reporting import compare, report

loadtest = typer.Typer(no_args_is_help=True, help="Load tests: send load, replay traces, read the reports.")
loadtest.command("run")(run)
loadtest.command("replay")(replay)
loadtest.command("report")(report)
loadtest.command("compare")(compare)


def add_to(app: typer.Typer) -> None:
    app.add_typer(loadtest, name="loadtest")
