"""What a checker says of a config: what will happen to something in it, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    """In the order of their weight; the first alone makes a repository unfit."""

    FAILS = "will fail"
    DIFFERS = "differs"
    IGNORED = "ignored"
    LOOK = "cannot be checked here"


@dataclass(frozen=True, slots=True)
class Finding:
    model: str
    verdict: Verdict
    what: str
    remedy: str = ""


def by_weight(findings: list[Finding]) -> list[Finding]:
    weights = list(Verdict)
    return sorted(findings, key=lambda finding: (finding.model, weights.index(finding.verdict)))


def is_fit(findings: list[Finding]) -> bool:
    return all(finding.verdict is not Verdict.FAILS for finding in findings)
