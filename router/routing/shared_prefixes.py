"""Beginnings of prompts whose cached tokens tenants may share, because the operator has named them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from python_backend.wire.errors import InflightError
from python_backend.wire.shared_prefix import describe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from router.routing.chat_template import ChatTemplate

# What follows may change how the last tokens of a text are cut; the engine checks what is left.
_UNCERTAIN_TOKENS = 4


class _Known(NamedTuple):
    beginning: str
    adds_special_tokens: bool
    description: str


class SharedPrefixes:
    """Of one model: each text as a system message begins with it, and as a plain prompt does."""

    def __init__(
        self, texts: Sequence[str] = (), template: ChatTemplate | None = None, tokenizer: Path | None = None
    ) -> None:
        self._known: list[_Known] = []
        if not texts or tokenizer is None or not tokenizer.is_file():
            return
        from tokenizers import Tokenizer

        encoding = Tokenizer.from_file(str(tokenizer))
        for text in texts:
            beginnings = [(text, True), (text, False)]
            if template is not None and (rendered := _as_system_message(template, text)):
                beginnings.append((rendered, False))
            for beginning, adds in beginnings:
                ids = encoding.encode(beginning, add_special_tokens=adds).ids[:-_UNCERTAIN_TOKENS]
                if ids:
                    self._known.append(_Known(beginning, adds, describe(ids)))
        self._known.sort(key=lambda known: -len(known.beginning))

    def __bool__(self) -> bool:
        return bool(self._known)

    def of(self, prompt: str, adds_special_tokens: bool) -> str | None:
        """How the longest one that the prompt begins with is described to the engine."""
        for beginning, adds, description in self._known:
            if adds == adds_special_tokens and prompt.startswith(beginning):
                return description
        return None


def _as_system_message(template: ChatTemplate, text: str) -> str | None:
    """The prompt's beginning up to the text's end; None where the template knows no system message."""
    messages = [{"role": "system", "content": text}, {"role": "user", "content": ""}]
    try:
        prompt = template.render(messages)
    except InflightError:
        return None
    found = prompt.find(text)
    return prompt[: found + len(text)] if found >= 0 else None
