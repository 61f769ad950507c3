"""Content is never control: what a caller writes cannot become a special token of the model."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

import msgspec

from router.core.generation import LITERAL_MARK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


class AddedToken(msgspec.Struct, frozen=True):
    """As tokenizer.json has it."""

    content: str
    special: bool = False
    normalized: bool = False


class TokenizerFile(msgspec.Struct, frozen=True):
    added_tokens: tuple[AddedToken, ...] = ()
    normalizer: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: Path) -> TokenizerFile:
        """Raises ValueError."""
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.is_file() else cls()


class LiteralContent:
    """Marks texts in messages and tools that the tokenizer would take for a token of the template's.

    Those are all special tokens, and such added tokens as the template itself writes (`<tool_call>`). What an
    assistant said may have the latter: templates look for them there (`</think>`).
    """

    def __init__(self, special: Iterable[str], written: Iterable[str] = (), folds: bool = False) -> None:
        special = {text for text in special if text}
        everything = _trie(special | {*written})
        self._search = re.compile(everything).search
        self._starts = re.compile(f"(?s)(?={everything}).")
        self._special_starts = re.compile(f"(?s)(?={_trie(special)}).") if special else None
        # The tokenizer changes letters before it looks for its tokens.
        self._folded_search = re.compile(_trie({_fold(text) for text in special})).search if folds else None

    @classmethod
    def of(cls, tokenizer: TokenizerFile, named: Iterable[str], template: str) -> LiteralContent | None:
        """None where there are no special tokens."""
        added = tokenizer.added_tokens
        special = {*named, *(token.content for token in added if token.special)} - {""}
        # Not runs of spaces, which some tokenizers add: those are in every text.
        written = {token.content for token in added if token.content.strip() and token.content in template}
        folds = tokenizer.normalizer is not None and any(token.normalized for token in added if token.special)
        return cls(special, written, folds) if special | written else None

    def mark(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]:
        """The same values where nothing has to be marked, which is nearly always."""
        search, folded = self._search, self._folded_search
        for message in messages:
            content = message.get("content")
            if len(message) > 2 or not isinstance(content, str) or search(content) or folded:
                messages = [self._marked_message(each) for each in messages]
                break
        if tools and (folded or search(json.dumps(tools, ensure_ascii=False))):
            tools = self._marked(tools)
        return messages, tools

    def _marked_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        marked: dict[str, Any] = self._marked(dict(message))
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, str):
            marked["content"] = self._marked_text(content, self._special_starts)
        return marked

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._marked_text(value, self._starts)
        if isinstance(value, dict):
            return {self._marked(name): self._marked(each) for name, each in value.items()}
        return [self._marked(each) for each in value] if isinstance(value, list) else value

    def _marked_text(self, text: str, starts: re.Pattern[str] | None) -> str:
        marked = text if starts is None else starts.sub(rf"\g<0>{LITERAL_MARK}", text)
        if self._folded_search is not None and self._folded_search(_fold(text)):
            marked += LITERAL_MARK
        return marked


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _trie(texts: Iterable[str]) -> str:
    """A pattern for where any of them begins; it does not try one after the other, as alternatives do."""
    rests: dict[str, set[str]] = {}
    for text in texts:
        if not text:
            return ""
        rests.setdefault(text[0], set()).add(text[1:])
    branches = (re.escape(first) + _trie(rest) for first, rest in sorted(rests.items()))
    return f"(?:{'|'.join(branches)})"
