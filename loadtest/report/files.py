"""Reports as files."""

from __future__ import annotations

import json
from pathlib import Path

from loadtest.report.comparison import Comparison, comparison_of
from loadtest.report.figures import summary_of
from loadtest.report.storage import FILE_NAME, stored, to_json
from loadtest.results import LoadRun

REPORT_NAME, COMPARISON_NAME = "report.html", "comparison.html"


def write_report(run: LoadRun, directory: Path) -> Path:
    """results.json and report.html, whose path is returned."""
    from loadtest.report.report import html_of

    directory.mkdir(parents=True, exist_ok=True)
    run = stored(run)
    data = {**to_json(run), "summary": summary_of(run)}
    (directory / FILE_NAME).write_text(_lines(data), encoding="utf-8")
    path = directory / REPORT_NAME
    path.write_text(html_of(run), encoding="utf-8")
    return path


def compare(first: LoadRun, second: LoadRun, directory: Path) -> Path:
    """comparison.json and comparison.html, whose path is returned: what the second changed."""
    first, second = stored(first), stored(second)
    return write_comparison(first, second, comparison_of(first, second), directory)


def write_comparison(first: LoadRun, second: LoadRun, comparison: Comparison, directory: Path) -> Path:
    from loadtest.report.comparison_page import html_of

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "comparison.json").write_text(json.dumps(comparison.to_json(), indent=1), encoding="utf-8")
    path = directory / COMPARISON_NAME
    path.write_text(html_of(first, second, comparison), encoding="utf-8")
    return path


def _lines(data: dict[str, object]) -> str:
    """A line for each request and each sample: small, and still fit for a pager."""
    rows = {name: data[name] for name in ("requests", "samples")}
    head = json.dumps({name: value for name, value in data.items() if name not in rows}, indent=1)
    parts = [head.rstrip().removesuffix("}").rstrip()]
    for name, values in rows.items():
        assert isinstance(values, list)
        lines = ",\n".join(json.dumps(value, separators=(",", ":")) for value in values)
        parts.append(f' "{name}": [\n{lines}\n ]')
    return ",\n".join(parts) + "\n}\n"
