"""The tokens that both stubs send, so that every router relays the same text."""

from __future__ import annotations

PROMPT_TOKENS = 12
_WORDS = (" the", " router", " sends", " each", " token", " on", " as", " it", " comes", " in", ".")


def word(number: int) -> str:
    return _WORDS[number % len(_WORDS)]
