"""The built-in check: terms and patterns of a file, found in folded text."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import ahocorasick  # type: ignore[import-not-found]  # it ships no types

from router.safety.check import Verdict
from router.safety.folding import Folding
from router.safety.patterns import BoundedPattern
from router.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.safety.rules import Rule, Rules

# Invisible characters do not count as held; nobody writes so many of them inside a word without intent.
MAX_HELD_CHARS = 4096
INVISIBLE = "invisible characters"


class RuleCheck:
    """All rules of a file, compiled once."""

    def __init__(self, rules: Rules) -> None:
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
            raise SettingsError(f"safety_rules: {rule.name}: a term without a visible character")
        whole_words = rule.whole_words
        if term in self._terms:  # the stricter of two rules counts
            whole_words &= self._terms.get(term)[2]
        self._terms.add_word(term, (len(term), rule.name, whole_words))
        self._longest = max(self._longest, len(term))

    def _found_terms(self, folded: str, before: str, is_last: bool) -> list[tuple[int, str]]:
        found = []
        for end, (length, rule, whole_words) in self._terms.iter(folded):
            start = end + 1 - length
            if whole_words:
                if _is_word(folded[start - 1 : start] if start else before):
                    continue
                following = folded[end + 1 : end + 2]
                if _is_word(following) or not (following or is_last):
                    continue
            found.append((start, rule))
        return found

    def _pending_term(self, folded: str) -> int:
        # A whole word at the end of the text counts too: what follows may make it another word.
        for start in range(max(0, len(folded) - self._longest), len(folded)):
            if self._terms.match(folded[start:]):
                return start
        return len(folded)


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"
