"""The text of others in lines that people read: what acts on a terminal, or cannot be seen, as an escape."""

from __future__ import annotations

import unicodedata

# Controls, what is invisible or turns the direction of writing, halves of characters, ends of lines.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN


def visible(text: str, also_kept: str = "") -> str:
    """Return the text as one line, with escapes (`\\x1b`, `\\n`, `\\u202e`) for what cannot be seen."""
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if is_hidden(char) and char not in also_kept else char
        for char in text
    )
