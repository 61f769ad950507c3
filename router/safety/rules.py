"""The built-in check: terms and patterns of a file, found in folded text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import ahocorasick  # type: ignore[import-not-found]  # it ships no types
import msgspec
import regex
from msgspec import Meta

from router.safety.check import Verdict
from router.safety.folding import Folding
from router.settings import SettingsError

# A pattern that backtracks without end is the operator's mistake, and the prompt's author may exploit it.
_TIMEOUT_S = 0.1
_TIMEOUT_S_PER_CHAR = 1e-6
_WINDOW_CHARS = 1 << 14
_ESCAPES = "dDwWsSnrtfvxuUpP"
_ONLY = "of those that begin with (? only (?: ) may be used"
# Invisible characters do not count as held; nobody writes so many of them inside a word without intent.
MAX_HELD_CHARS = 4096
INVISIBLE = "invisible characters"
MAX_TERM_CHARS = 256
MAX_PATTERN_CHARS = 512


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule. Its name is told to the client; terms and pattern never are."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
    terms: tuple[Annotated[str, Meta(min_length=1, max_length=MAX_TERM_CHARS)], ...] = ()
    pattern: Annotated[str, Meta(max_length=1000)] = ""
    max_chars: Annotated[int, Meta(ge=0, le=MAX_PATTERN_CHARS)] = 0
    whole_words: bool = True
    applies_to: Literal["both", "prompt", "answer"] = "both"


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: Annotated[tuple[Rule, ...], Meta(min_length=1)]
    homoglyphs: bool = False


def load_rules(path: Path) -> Rules:
    try:
        rules = msgspec.toml.decode(path.read_bytes(), type=Rules)
    except OSError as error:
        raise SettingsError(f"safety_rules: cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"safety_rules: {path}: {error}") from error
    for rule in rules.rules:
        if not rule.terms and not rule.pattern:
            raise SettingsError(f"safety_rules: {rule.name}: expected terms, a pattern or both")
        if bool(rule.pattern) != bool(rule.max_chars):
            raise SettingsError(
                f"safety_rules: {rule.name}: pattern and max_chars, the length of its longest match "
                f"(1 to {MAX_PATTERN_CHARS}), have to be set together"
            )
    return rules


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
            raise SettingsError(f"safety_rules: {rule}: the pattern is invalid: {error}") from error
        if regex.match(pattern, "") is not None:
            raise SettingsError(f"safety_rules: {rule}: the pattern matches the empty text")

    def look(self, text: str, start: int, is_last: bool) -> tuple[int, bool]:
        """Where a match begins, or may have begun, and whether it is one; the text's end where there is none.

        What is before `start` is seen for the boundary alone.
        """
        if is_last:
            found = self._ended.search(text, start, **_terms_for(text))
            return (len(text), False) if found is None else (found.start(), True)
        found = self._growing.search(text, start, partial=True, **_terms_for(text))
        too_long = len(text) - self._max_chars
        if found is not None and found.partial and found.start() <= too_long:
            found = self._growing.search(text, too_long + 1, partial=True, **_terms_for(text))
        return (len(text), False) if found is None else (found.start(), not found.partial)


def _terms_for(text: str) -> dict[str, Any]:
    """How long a search may take; a long one leaves the interpreter to others meanwhile."""
    timeout_s = _TIMEOUT_S + len(text) * _TIMEOUT_S_PER_CHAR
    return {"timeout": timeout_s, "concurrent": len(text) > _WINDOW_CHARS}


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
            raise _refusal(rule, char, f"folded text contains {folded!r} instead; write that")


def _refusal(rule: str, what: str, why: str) -> SettingsError:
    return SettingsError(f"safety_rules: {rule}: the pattern contains {what!r}: {why}")


class RuleCheck:
    """All rules of a file, compiled once."""

    def __init__(self, rules: Rules) -> None:
        self.rules = tuple(rule.name for rule in rules.rules)
        self._folding = Folding(rules.homoglyphs)
        self._prompt = _Matcher([rule for rule in rules.rules if rule.applies_to != "answer"], self._folding)
        self._answer = _Matcher([rule for rule in rules.rules if rule.applies_to != "prompt"], self._folding)

    def judge(self, prompt: str) -> str | None:
        return self._prompt.look(self._folding.whole(prompt), "", is_last=True)[1]

    def reader(self) -> RuleReader:
        return RuleReader(self._answer, self._folding)


class RuleReader:
    """Clears what comes before the first place where a match may have begun."""

    def __init__(self, matcher: _Matcher, folding: Folding) -> None:
        self._matcher = matcher
        self._folding = folding
        self._before = ""  # the last folded character that left

    def read(self, held: str, is_last: bool) -> Verdict:
        folded, offsets = self._folding.mapped(held, self._before)
        start, rule = self._matcher.look(folded, self._before, is_last)
        if rule is not None:
            return Verdict(offsets[start], rule)
        if start == len(folded):
            self._before = folded[-1:] or self._before
            return Verdict(len(held))
        clear_chars = offsets[start]
        if len(held) - clear_chars > MAX_HELD_CHARS:
            return Verdict(clear_chars, INVISIBLE)
        self._before = folded[: bisect_left(offsets, clear_chars)][-1:] or self._before
        return Verdict(clear_chars)


class _Matcher:
    """Terms in an automaton, one pass whatever their number, and the patterns one by one."""

    def __init__(self, rules: Sequence[Rule], folding: Folding) -> None:
        self._terms = ahocorasick.Automaton()
        self._longest = 0
        for rule in rules:
            for term in rule.terms:
                self._add(rule, folding.whole(term).strip())
        if self._longest:
            self._terms.make_automaton()
        self._patterns = [
            BoundedPattern(rule.name, rule.pattern, rule.max_chars, rule.whole_words, folding)
            for rule in rules
            if rule.pattern
        ]

    def look(self, folded: str, before: str, is_last: bool) -> tuple[int, str | None]:
        """Where the first match begins and its rule, or else where one may have begun that more text could
        complete, the text's end where none has; `before` is the character in front of the text."""
        found = self._found_terms(folded, before, is_last) if self._longest else []
        pending = len(folded) if is_last else self._pending_term(folded)
        for pattern in self._patterns:
            start, is_match = pattern.look(before + folded, len(before), is_last)
            if is_match:
                found.append((start - len(before), pattern.rule))
            else:
                pending = min(pending, start - len(before))
        if not found:
            return pending, None
        start, rule = min(found)
        return min(start, pending), rule

    def _add(self, rule: Rule, term: str) -> None:
        if not term:
            raise SettingsError(f"safety_rules: {rule.name}: a term has no visible character")
        whole_words = rule.whole_words
        if term in self._terms:  # the stricter of two rules counts
            whole_words &= self._terms.get(term)[2]
        self._terms.add_word(term, (len(term), rule.name, whole_words))
        self._longest = max(self._longest, len(term))

    def _found_terms(self, folded: str, before: str, is_last: bool) -> list[tuple[int, str]]:
        found = []
        for end, (length, rule, whole_words) in self._each_term(folded):
            start = end + 1 - length
            if whole_words:
                if _is_word(folded[start - 1 : start] if start else before):
                    continue
                following = folded[end + 1 : end + 2]
                if _is_word(following) or not (following or is_last):
                    continue
            found.append((start, rule))
        return found

    def _each_term(self, folded: str) -> Iterator[tuple[int, tuple[int, str, bool]]]:
        """A window at a time, which begins where a term may that ends in it: others may run in between."""
        for first in range(0, len(folded), _WINDOW_CHARS):
            begin = max(0, first - self._longest)
            for end, term in self._terms.iter(folded, begin, min(first + _WINDOW_CHARS, len(folded))):
                if end >= first:
                    yield end, term

    def _pending_term(self, folded: str) -> int:
        # A whole word at the end of the text counts too: what follows may make it another word.
        for start in range(max(0, len(folded) - self._longest), len(folded)):
            if self._terms.match(folded[start:]):
                return start
        return len(folded)


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"
