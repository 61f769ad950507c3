"""Writes the last figures into docs/reliability.md, from files that the runs themselves have left.

    pytest --figures tests.json tests/survival ...
    inflight chaos --minutes 30 --seed 1 --report 1.html     (leaves 1.json beside it)
    python -m benchmarks.reliability --tests tests.json --chaos 1.json 2.json

A case of which nothing was run keeps the figure that it has.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
_CASE = re.compile(r"^\| \d+ \|.*\|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`")
_FAULTS = re.compile(r"`inflight chaos --faults ([\w,-]+)`")
_RUNS = re.compile(r"(?<=<!-- runs -->\n).*?(?=\n<!-- end of runs -->)", re.DOTALL)
_HEADINGS = (
    "| run | faults | requests | whole | cut with their connection | refused | violations | "
    "longest until all was at rest | longest silence |\n|---|---|---|---|---|---|---|---|---|"
)


def written(page: str, tests: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    page = _CASE.sub(lambda row: _case(row[0], tests, runs), page)
    if runs:
        rows = "\n".join(map(_run, runs))
        page = _RUNS.sub(lambda _: f"{_HEADINGS}\n{rows}", page)
    return page


def _case(row: str, tests: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    *cells, last = row.strip("|").split("|")
    found = [tests[name]["figure"] for name in _TEST.findall(row) if name in tests]
    for names in _FAULTS.findall(row):
        found += [words for name in names.split(",") if (words := _fault(name, runs))]
    if not found:
        return row
    # A link says where to read on: it stays beside the figure.
    links = [link for link in re.findall(r"\[[^\]]*\]\([^)]*\)", last) if link not in found]
    figures = [each for each in dict.fromkeys(found) if each != "met"] or ["met"]
    if figures == ["met"] and last.strip() not in ("met", "failed"):
        return row  # a figure of a longer run, which this one confirms
    return f"|{'|'.join(cells)}| {'; '.join([*figures, *links])} |"


def _fault(name: str, runs: Sequence[Mapping[str, Any]]) -> str:
    of_it = [run["faults"][name] for run in runs if name in run["faults"]]
    if not of_it:
        return ""
    counted = ("times", "requests", "refused", "whole", "cut")
    times, requests, refused, whole, cut = (sum(each[key] for each in of_it) for key in counted)
    silence_s = max(each["longest_silence_s"] for each in of_it)
    begun = requests - refused
    share = f"all {begun:,} answers" if whole == begun else f"{whole:,} of {begun:,} answers"
    ended = f", {cut:,} cut with their connection" if cut else ""
    return f"`{name}` {times} times: {share} whole{ended}, longest silence {silence_s:g} s"


def _run(run: Mapping[str, Any]) -> str:
    counts = (run[key] for key in ("times", "requests", "whole", "cut", "refused", "violations"))
    command = re.sub(r" --report \S+", "", run["command"])
    cells = [f"`{command}`", *(f"{each:,}" for each in counts)]
    cells += [f"{run[key]:g} s" for key in ("longest_rest_s", "longest_silence_s")]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tests", type=Path, help="the output of pytest --figures")
    parser.add_argument("--chaos", type=Path, nargs="*", default=[], help="the output of inflight chaos")
    asked = parser.parse_args()
    tests = json.loads(asked.tests.read_text()) if asked.tests else {}
    runs = [json.loads(path.read_text()) for path in asked.chaos]
    PAGE.write_text(written(PAGE.read_text(), tests, runs))


if __name__ == "__main__":
    main()
