"""The tokenizer of an encoder: texts, or pairs of them, to ids between special ones, cut to length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
import tokenizers.processors

from python_backend.embeddings.description import Description
from python_backend.embeddings.pair_template import PairTemplate, WrittenPairs
from python_backend.engine.checkpoint import unusable
from python_backend.engine.checkpoint.safetensors_files import read_json
from python_backend.wire.errors import ErrorKind, InflightError


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text, or one pair; `types` tell the second text of a pair from the first."""

    ids: list[int]
    types: list[int] = field(default_factory=list)  # none: all 0

    def __len__(self) -> int:
        return len(self.ids)


class WordPieces:
    """What is longer than `max_tokens`, special tokens included, loses its end; of a pair the longer text.

    With a `template` a pair is one text, and what loses its end is the second of it.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        max_tokens: int,
        is_lower_case: bool = False,
        template: PairTemplate | None = None,
    ) -> None:
        backend.enable_truncation(max_tokens)
        self._backend = backend
        self._is_lower_case = is_lower_case
        self._written = None if template is None else WrittenPairs(backend, template)
        self.max_tokens = max_tokens
        self.vocabulary: int = backend.get_vocab_size(with_added_tokens=True)
        self._first, self._last = frame_of(backend)

    @classmethod
    def load(cls, directory: Path, description: Description) -> WordPieces:
        path = directory / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise unusable(f"{path} cannot be read: {error}") from error
        backend.no_padding()  # some files ask for it, and for a cut of their own
        backend.no_truncation()
        if description.is_decoder:
            _append_end(backend, directory)
        elif (count := len(backend.encode("").ids)) != 2:
            raise unusable(f"tokenizer.json puts {count} special tokens around a text; expected 2")
        return cls(backend, description.max_tokens, description.is_lower_case, description.template)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        given = [text.lower() for text in texts] if self._is_lower_case else texts
        return [encoding.ids for encoding in self._backend.encode_batch_fast(given)]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[Tokens]:
        if self._written is not None:
            return [Tokens(ids) for ids in self._written.encode(pairs, self.max_tokens)]
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
        first, last = self._first, self._last
        is_framed = len(ids) > 1 and list(ids[: len(first)]) == first and list(ids[-len(last) :]) == last
        bare = ids[len(first) : len(ids) - len(last)] if is_framed and (first or last) else ids
        return [*first, *bare[: self.max_tokens - len(first) - len(last)], *last]


def frame_of(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens before a text, and those behind it."""
    special: list[int] = backend.encode("").ids
    bare, whole = backend.encode("a", add_special_tokens=False).ids, backend.encode("a").ids
    for count in range(len(special) + 1):
        if [*special[:count], *bare, *special[count:]] == whole:
            return special[:count], special[count:]
    raise unusable("tokenizer.json inserts special tokens into a text; allowed: before and after it")


def _append_end(backend: tokenizers.Tokenizer, directory: Path) -> None:
    """Some decoders' files ask for a token at the end beside the tokenizer's own rules."""
    path = directory / "tokenizer_config.json"
    told = read_json(path) if path.is_file() else {}
    end = told.get("eos_token")
    end = end.get("content") if isinstance(end, dict) else end
    if not told.get("add_eos_token") or not isinstance(end, str):
        return
    first, last = frame_of(backend)
    end_id = backend.token_to_id(end)
    if end_id is None or last[-1:] == [end_id]:
        return
    before, behind = ([(str(backend.id_to_token(each)), each) for each in part] for part in (first, last))
    behind.append((end, end_id))
    parts = [*(name for name, _ in before), "$A", *(name for name, _ in behind)]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=" ".join(parts), special_tokens=[*before, *behind]
    )
