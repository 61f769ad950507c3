"""The port to whatever judges text; the built-in one reads a file of rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Verdict(NamedTuple):
    """How much of the held text may leave, and the public name of the rule that ends the answer there."""

    clear_chars: int
    rule: str | None = None


class Reader(Protocol):
    """Reads one answer."""

    def read(self, held: str, is_last: bool) -> Verdict:
        """Judges all that has not left yet, the newest at its end.

        What is not cleared is given again with what follows it. A character in which something forbidden may
        still begin must not be cleared; once `is_last` nothing follows, and all is cleared or a rule named.
        """


class Check(Protocol):
    """One for all requests. Both methods are called on the event loop: they must not wait for anything."""

    def judge(self, prompt: str) -> str | None:
        """The public name of the rule that forbids the prompt, if one does; long ones come in a thread."""

    def reader(self) -> Reader:
        """A reader for one answer."""


class AllChecks:
    """Several checks as one: what any of them forbids is forbidden."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self._checks = checks
        self.rules = tuple(rule for check in checks for rule in getattr(check, "rules", ()))

    def judge(self, prompt: str) -> str | None:
        return next((rule for check in self._checks if (rule := check.judge(prompt))), None)

    def reader(self) -> Reader:
        return _AllReaders([check.reader() for check in self._checks])


class _AllReaders:
    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers
        self._cleared = [0] * len(readers)

    def read(self, held: str, is_last: bool) -> Verdict:
        """Each reader sees the text from where it cleared it itself, whatever the others still hold."""
        verdicts = []
        for index, reader in enumerate(self._readers):
            own = self._cleared[index]
            clear, rule = reader.read(held[own:], is_last)
            verdicts.append(Verdict(own + clear, rule))
        clear_chars = min(verdict.clear_chars for verdict in verdicts)
        self._cleared = [verdict.clear_chars - clear_chars for verdict in verdicts]
        rules = [verdict for verdict in verdicts if verdict.rule is not None]
        return Verdict(clear_chars, min(rules).rule if rules else None)
