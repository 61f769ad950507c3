"""The tokenizer of an encoder: texts, or pairs of them, to ids between special ones, cut to length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers

from python_backend.engine.checkpoint import unusable
from python_backend.wire.errors import ErrorKind, InflightError


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text, or one pair; `types` tell the second text of a pair from the first."""

    ids: list[int]
    types: list[int] = field(default_factory=list)  # none: all 0

    def __len__(self) -> int:
        return len(self.ids)


class WordPieces:
    """What is longer than `max_tokens`, special tokens included, loses its end; of a pair the longer text."""

    def __init__(self, backend: tokenizers.Tokenizer, max_tokens: int, is_lower_case: bool = False) -> None:
        backend.no_padding()  # files of this family ask for it, and for a cut of their own
        backend.enable_truncation(max_tokens)
        self._backend = backend
        self._is_lower_case = is_lower_case
        self.max_tokens = max_tokens
        self.vocabulary: int = backend.get_vocab_size(with_added_tokens=True)
        frame: list[int] = backend.encode("").ids
        if len(frame) != 2:
            raise unusable(f"tokenizer.json puts {len(frame)} special tokens around a text; expected 2")
        self._first, self._last = frame

    @classmethod
    def load(cls, directory: Path, max_tokens: int, is_lower_case: bool = False) -> WordPieces:
        path = directory / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise unusable(f"{path} cannot be read: {error}") from error
        return cls(backend, max_tokens, is_lower_case)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        given = [text.lower() for text in texts] if self._is_lower_case else texts
        return [encoding.ids for encoding in self._backend.encode_batch_fast(given)]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens]:
        return [Tokens(each.ids, each.type_ids) for each in self._backend.encode_batch_fast(pairs)]

    def frame(self, ids: Sequence[int]) -> list[int]:
        """Ids that a caller has made, put between the special tokens unless they are there already."""
        strangers = [each for each in ids if not 0 <= each < self.vocabulary]
        if strangers:
            raise InflightError(
                ErrorKind.INVALID_REQUEST,
                f"token id {strangers[0]} is not in this model's vocabulary; allowed: 0 to "
                f"{self.vocabulary - 1}, from the model's own tokenizer (send text if in doubt)",
            )
        bare = ids[1:-1] if len(ids) > 1 and (ids[0], ids[-1]) == (self._first, self._last) else ids
        return [self._first, *bare[: self.max_tokens - 2], self._last]
