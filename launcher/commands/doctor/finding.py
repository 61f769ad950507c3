"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line, and for what is not well what to do next."""

    check: str
    verdict: Verdict
    what: str
    advice: str = ""


def fine(check: str, what: str) -> Finding:
    return Finding(check, Verdict.OK, what)


def warning(check: str, what: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARN, what, advice)


def failure(check: str, what: str, advice: str) -> Finding:
    return Finding(check, Verdict.FAIL, what, advice)


def skipped(check: str, what: str) -> Finding:
    return Finding(check, Verdict.SKIPPED, what)
