"""The metrics that docs/metrics.md tells of, and those on a page that Prometheus reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| `((?:inflight|nv)_\w+)` \| (\w+) \|([\w, ]*)\|", re.MULTILINE)
_OF_KINDS = frozenset({"le", "quantile"})  # labels that histograms and summaries have by themselves


@dataclass(frozen=True)
class Documented:
    name: str
    kind: str
    labels: frozenset[str]


def documented() -> dict[str, Documented]:
    """By name; each in one row alone."""
    rows = [
        Documented(name, kind, frozenset(filter(None, labels.strip().split(", "))) - _OF_KINDS)
        for name, kind, labels in _ROW.findall(PAGE.read_text())
    ]
    found = {each.name: each for each in rows}
    assert len(found) == len(rows), "a metric is in two rows"
    return found


def exposed(text: str) -> dict[str, Documented]:
    """What a metrics page has values of."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if f"# TYPE {family.name}_total counter" in text else family.name
        for sample in family.samples:
            labels = frozenset(sample.labels) - _OF_KINDS
            found[name] = Documented(name, family.type, labels)
    return found
