"""`make bench`: every measurement, or those named: python -m benchmarks [NAME ...] [--plots DIRECTORY]."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from rich.console import Console

from benchmarks import batching, coalescing, costs, cpu_kernels, prefix, releases, tenant_prefixes
from benchmarks.objectives import report as objectives
from benchmarks.peers import report as peers
from benchmarks.plots import Plots
from benchmarks.router import report as router

MEASUREMENTS = {
    "batching": batching.report,
    "coalescing": coalescing.report,
    "peers": peers.report,
    "prefix": prefix.report,
    "tenant_prefixes": tenant_prefixes.report,
    "costs": costs.report,
    "router": router.report,
    "releases": releases.report,
    "objectives": objectives.report,
    "kernels": cpu_kernels.report,
}


def main() -> None:
    parser = ArgumentParser(prog="make bench", description="Comparisons, each in one run.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"all, or some of: {', '.join(MEASUREMENTS)}"
    )
    parser.add_argument(
        "--plots", type=Path, metavar="DIRECTORY", help="where to write the plots, as SVG files"
    )
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in MEASUREMENTS]:
        sys.exit(f"unknown measurement {unknown[0]}; there are: {', '.join(MEASUREMENTS)}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    plots = Plots(asked.plots)
    met = [MEASUREMENTS[name](console, plots) for name in asked.names or MEASUREMENTS]
    sys.exit(0 if all(met) else "a goal was missed")


if __name__ == "__main__":
    main()
