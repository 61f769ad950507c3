"""`inflight loadtest report` and `compare`: pages made from stored runs."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client.terminal import print
from launcher.commands.loadtest.options import usable_folder
from launcher.commands.option_values import Mistake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadtest.results import LoadRun

INSTALL = "pip install 'inflight[loadtest]'"
_RUN_HELP = "The folder of a report, or its results.json."


def check_drawing() -> None:
    """Before anything is measured: a run without a report would be for nothing."""
    if find_spec("matplotlib") is None:
        raise Mistake(f"reports need matplotlib: {INSTALL}")


def report(
    run: Annotated[Path, typer.Argument(help=_RUN_HELP)],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write. [default: beside the run]")
    ] = None,
) -> None:
    """Write the report of a stored run again.

    `inflight loadtest report loadtest-report`

    Exit status: 0 written, 2 the run cannot be read.
    """
    from loadtest.report import write_report

    directory = out or (run if run.is_dir() else run.parent)
    (read,) = _read([run], directory)
    print(f"Report: {write_report(read, directory)}")


def compare(
    first: Annotated[Path, typer.Argument(help=_RUN_HELP)],
    second: Annotated[Path, typer.Argument(help="The same, of the run to judge.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.")] = Path("loadtest-comparison"),
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when the second is worse in any metric.")
    ] = False,
) -> None:
    """Compare two runs, and tell differences from noise.

    Each run needs at least 40 requests; the same trace or seed in both gives the clearest result.

    `inflight loadtest compare before after --out compared --check`

    Exit status: 0 compared, 1 worse (with --check), 2 a run cannot be read.
    """
    from loadtest.report.comparison import WORSE, comparison_of
    from loadtest.report.files import write_comparison

    before, after = _read([first, second], out)
    comparison = comparison_of(before, after)
    path = write_comparison(before, after, comparison, out)
    for line in (*comparison.warnings, comparison.verdict, f"Comparison: {path}"):
        print(line)
    if check and any(row.verdict == WORSE for row in comparison.rows):
        raise typer.Exit(1)


def _read(paths: Sequence[Path], out: Path) -> list[LoadRun]:
    from loadtest.report import RunError, load_run

    try:
        check_drawing()
        runs = [load_run(path) for path in paths]
        usable_folder(out)
        return runs
    except (Mistake, RunError) as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
