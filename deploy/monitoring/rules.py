"""Recording and alerting rules as values, and the file that Prometheus reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

RUNBOOK = "docs/alerts.md"


@dataclass(frozen=True, slots=True)
class Recording:
    """`name` is level:metric:operation, as is usual: the labels left, what it is of, what was done."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    """Severity: critical wakes somebody, warning is for working hours, info is for the record."""

    name: str
    severity: str
    expr: str
    lasting: str
    summary: str
    description: str

    @property
    def runbook(self) -> str:
        return f"{RUNBOOK}#{self.name.lower()}"


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    rules: tuple[Recording | Alert, ...]
    interval: str = ""


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, which people can read."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def rendered(groups: Sequence[Group], header: str) -> str:
    return header + yaml.dump(
        {"groups": [_group(each) for each in groups]}, Dumper=_Dumper, sort_keys=False, width=110
    )


def _group(group: Group) -> dict[str, Any]:
    made: dict[str, Any] = {"name": group.name}
    if group.interval:
        made["interval"] = group.interval
    return {**made, "rules": [_rule(rule) for rule in group.rules]}


def _rule(rule: Recording | Alert) -> dict[str, Any]:
    if isinstance(rule, Recording):
        return {"record": rule.name, "expr": rule.expr}
    made: dict[str, Any] = {"alert": rule.name, "expr": rule.expr}
    if rule.lasting:
        made["for"] = rule.lasting
    annotations = {"summary": rule.summary, "description": rule.description, "runbook_url": rule.runbook}
    return {**made, "labels": {"severity": rule.severity}, "annotations": annotations}
