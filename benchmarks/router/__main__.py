"""`python -m benchmarks.router [NAME ...] [--rounds N] [--plots DIRECTORY]`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from rich.console import Console

from benchmarks.plots import Plots
from benchmarks.router.contestants import CONTESTANTS
from benchmarks.router.report import ROUNDS, report


def main() -> None:
    names = [each.name for each in CONTESTANTS]
    parser = ArgumentParser(prog="benchmarks.router", description="The router beside its peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all, or some of: {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in names]:
        sys.exit(f"unknown router {unknown[0]}; there are: {', '.join(names)}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    met = report(console, Plots(asked.plots), asked.names, asked.rounds)
    sys.exit(0 if met else "a goal was missed")


if __name__ == "__main__":
    main()
