"""The two ways in which the launcher's work fails, whichever command it is for."""

from __future__ import annotations


class Unusable(Exception):
    """Something on this machine cannot be used; the message says what, and what to do about it."""


class ProcessFailed(Exception):
    """A program that was started failed; `lines` are the end of its log."""

    def __init__(self, message: str, lines: list[str] | None = None) -> None:
        super().__init__(message)
        self.lines = lines or []
