"""`make bench`: every measurement, or those named: python -m benchmarks [batching] [coalescing]."""

from __future__ import annotations

import sys

from rich.console import Console

from benchmarks import batching, coalescing

MEASUREMENTS = {"batching": batching.report, "coalescing": coalescing.report}


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in MEASUREMENTS]:
        sys.exit(f"unknown measurement {unknown[0]}; there are: {', '.join(MEASUREMENTS)}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    met = [MEASUREMENTS[name](console) for name in names or MEASUREMENTS]
    sys.exit(0 if all(met) else "a goal was missed")


if __name__ == "__main__":
    main(sys.argv[1:])
