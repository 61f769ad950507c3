"""Regular expressions to be followed through a stream: bounded in length, in time and in what they see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import regex

from router.settings import SettingsError

if TYPE_CHECKING:
    from router.safety.folding import Folding

# A pattern that backtracks without end is the operator's mistake, and the prompt's author may exploit it.
_TIMEOUT_S = 0.1
_TIMEOUT_S_PER_CHAR = 1e-6
_ESCAPES = "dDwWsSnrtfvxuUpP"
_ONLY = "of those that begin with (? only (?: ) may be used"


class BoundedPattern:
    """Finds matches in folded text that is still growing.

    Without assertions and references a match depends on its own characters alone, so that one that was found
    stays one. The word boundary behind a match is the exception: while nothing follows yet it is unknown,
    which is written as one more character to come.
    """

    def __init__(self, rule: str, pattern: str, max_chars: int, whole_words: bool, folding: Folding) -> None:
        self.rule = rule
        _refuse_assertions(rule, pattern)
        _refuse_unfolded(rule, pattern, folding)
        before, after, at_end = (r"(?<!\w)", r"\W", r"(?!\w)") if whole_words else ("", "", "")
        self._max_chars = max_chars + len(before and "x")
        try:
            self._growing = regex.compile(f"{before}(?:{pattern}){after}", regex.IGNORECASE)
            self._ended = regex.compile(f"{before}(?:{pattern}){at_end}", regex.IGNORECASE)
        except regex.error as error:
            raise SettingsError(f"safety_rules: {rule}: the pattern cannot be used: {error}") from error
        if regex.match(pattern, "") is not None:
            raise SettingsError(f"safety_rules: {rule}: the pattern matches where there is nothing")

    def look(self, text: str, start: int, is_last: bool) -> tuple[int, bool]:
        """Where a match begins, or may have begun, and whether it is one; the text's end where there is none.

        What is before `start` is seen for the boundary alone.
        """
        if is_last:
            found = self._ended.search(text, start, timeout=_timeout_s(text))
            return (len(text), False) if found is None else (found.start(), True)
        found = self._growing.search(text, start, partial=True, timeout=_timeout_s(text))
        too_long = len(text) - self._max_chars
        if found is not None and found.partial and found.start() <= too_long:
            found = self._growing.search(text, too_long + 1, partial=True, timeout=_timeout_s(text))
        return (len(text), False) if found is None else (found.start(), not found.partial)


def _timeout_s(text: str) -> float:
    return _TIMEOUT_S + len(text) * _TIMEOUT_S_PER_CHAR


def _refuse_assertions(rule: str, pattern: str) -> None:
    in_class = False
    at = 0
    while at < len(pattern):
        char, following = pattern[at], pattern[at + 1 : at + 3]
        if char == "\\":
            if following[:1].isalnum() and following[:1] not in _ESCAPES:
                raise _refusal(rule, f"\\{following[:1]}", "assertions and references are not allowed")
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            # A closing bracket that comes first stands for itself.
            at += 1 if following[:1] == "^" else 0
            at += 1 if pattern[at + 1 : at + 2] == "]" else 0
        elif char in "^$":
            raise _refusal(rule, char, "assertions are not allowed; whole_words asks for boundaries")
        elif char == "(" and following[:1] == "?" and following != "?:":
            raise _refusal(rule, f"({following}", _ONLY)
        elif char == "{" and not regex.match(r"\d*,?\d*\}", pattern[at + 1 :]):
            raise _refusal(rule, char, "braces hold numbers; for the character write \\{")
        at += 1


def _refuse_unfolded(rule: str, pattern: str, folding: Folding) -> None:
    for char in pattern:
        folded = folding[ord(char)]
        if folded != char.lower():
            raise _refusal(rule, char, f"folded text has {folded!r} in its place; write that")


def _refusal(rule: str, what: str, why: str) -> SettingsError:
    return SettingsError(f"safety_rules: {rule}: the pattern holds {what!r}: {why}")
