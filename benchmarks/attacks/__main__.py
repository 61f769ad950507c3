"""What one tenant's attacks cost a neighbour: `python -m benchmarks.attacks`, in about eight minutes.

A router runs with a paced engine. A neighbour streams eight answers of one token every 20 ms. Meanwhile
another tenant, or a stranger, sends an attack, and in other rounds as many honest requests; rounds alternate
within seconds, each pair in the other order, so that a busy machine hurts both alike. What counts is the
99.9th percentile of the gaps between the neighbour's tokens, of all rounds the median. Under an attack it may
be at most 1.5 times what it is under honest requests. Before these rounds, every shape of request is sent to
every door of a router, which none may make hold its interpreter for more than 5 ms. The exit status is 1 if
a goal is missed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.attacks import held_interpreter
from benchmarks.attacks.cases import CASES
from benchmarks.attacks.measuring import Found, measure
from benchmarks.attacks.serving import serving

_ROUNDS = 4


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"of each side (default: {_ROUNDS})")
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    asked = parser.parse_args()
    cases = [each for each in CASES if asked.only in each.name]
    is_held_asked = asked.only in held_interpreter.NAME
    if asked.list or not (cases or is_held_asked):
        names = [each.name for each in (cases or CASES)] + [held_interpreter.NAME] * is_held_asked
        print(*names, sep="\n")
        sys.exit(0 if cases else f"no case has {asked.only!r} in its name; there are those above")
    console = Console(width=None if sys.stdout.isatty() else 140)
    began_s, found = time.monotonic(), []
    is_met = not is_held_asked or held_interpreter.report(console)
    if not cases:
        sys.exit(0 if is_met else 1)
    with serving() as (port, keys), console.status("starting") as status:
        for number, case in enumerate(cases, 1):
            found.append(measure(case, port, keys, asked.rounds, status.update))
            console.print(f"{number} of {len(cases)}: {_sentence(found[-1])}", highlight=False)
    console.print(_table(found))
    missed = [each.case.name for each in found if not each.is_met]
    print(f"{len(found) - len(missed)} of {len(found)} met; missed: {', '.join(missed) or 'none'}")
    load = os.getloadavg()[0]
    print(f"in {time.monotonic() - began_s:.0f} s, with a load of {load:.1f} on {os.cpu_count()} processors")
    if asked.json:
        asked.json.write_text(json.dumps([_figures(each) for each in found], indent=1))
    sys.exit(0 if is_met and not missed else 1)


def _sentence(found: Found) -> str:
    gaps = f"{found.honest.gap_ms:.1f} → {found.attacked.gap_ms:.1f} ms"
    return f"{found.case.name}: {gaps}, {found.ratio:.2f} times{'' if found.is_met else ', MISSED'}"


def _table(found: list[Found]) -> Table:
    table = Table(
        "attack",
        "a second",
        "gap p99.9: honest → attacked",
        "ratio",
        "goal",
        "",
        caption="of a neighbour's tokens, one every 20 ms; medians of the rounds",
    )
    for each in found:
        gaps = f"{each.honest.gap_ms:.1f} → {each.attacked.gap_ms:.1f} ms"
        verdict = "met" if each.is_met else "MISSED"
        table.add_row(
            each.case.name,
            f"{each.case.per_s:g}",
            gaps,
            f"{each.ratio:.2f}",
            f"≤ {each.case.goal:g}",
            verdict,
        )
    return table


def _figures(found: Found) -> dict[str, object]:
    return {
        "case": found.case.name,
        "per_s": found.case.per_s,
        "honest_ms": found.honest.gaps_ms,
        "attacked_ms": found.attacked.gaps_ms,
        "ratio": found.ratio,
        "goal": found.case.goal,
    }


if __name__ == "__main__":
    main()
