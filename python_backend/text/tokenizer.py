"""A checkpoint's tokenizer: text to ids and back, with the ids that end and pad a text."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from python_backend.text.literal_encoder import LiteralEncoder
from python_backend.text.pieces import Pieces
from python_backend.text.remembered_texts import RememberedTexts


class TokenizerError(ValueError):
    """The checkpoint directory does not hold a usable tokenizer."""


class Tokenizer:
    """A Hugging Face tokenizer without truncation and padding."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: Sequence[int],
        pad_id: int | None = None,
        bos_id: int | None = None,
    ) -> None:
        if not eos_ids:
            raise TokenizerError("a tokenizer needs at least one end-of-text token")
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._pieces: dict[bool, Pieces] = {}
        self.eos_ids = tuple(eos_ids)
        self.eos_id = self.eos_ids[0]
        self.pad_id = self.eos_id if pad_id is None else pad_id
        self.bos_id = bos_id
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    @classmethod
    def load(cls, directory: str | Path) -> "Tokenizer":
        """Read a checkpoint's tokenizer.json; its other files say which tokens begin, end and pad a text."""
        directory = Path(directory)
        backend = _read_tokenizer(directory)
        names = _SpecialTokens(directory, backend)
        # The generation's own setting comes first: chat models end at a turn, not at the end of a text.
        eos_ids = names.generation_ids("eos") or names.tokenizer_ids("eos") or names.model_ids("eos")
        if not eos_ids:
            raise TokenizerError(
                f"{directory}: there is no end-of-text token: generation_config.json and config.json name no "
                "eos_token_id, tokenizer_config.json and special_tokens_map.json no eos_token that is in "
                "tokenizer.json"
            )
        # Of several, the tokenizer's own is the usual end, and the one the engine treats as such.
        usual = names.tokenizer_ids("eos")
        eos_ids = sorted(eos_ids, key=lambda token_id: token_id not in usual)
        return cls(backend, eos_ids=eos_ids, pad_id=names.main_id("pad"), bos_id=names.main_id("bos"))

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def literal_encoder(self) -> LiteralEncoder:
        """For texts that name special tokens without meaning them; it is a second tokenizer."""
        return LiteralEncoder(self._backend)

    def remembered_texts(self, is_trusted: bool) -> RememberedTexts:
        return RememberedTexts(self._backend, is_trusted)

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of stop or bad words, one list a word; words that encode to nothing are left out."""
        return [ids for ids in self.encode_batch(words, add_special_tokens=False) if ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def pieces(self, skip_special_tokens: bool) -> Pieces:
        """The table that stream decoders share; `UnsupportedDecoder` if this tokenizer cannot be streamed."""
        if skip_special_tokens not in self._pieces:
            self._pieces[skip_special_tokens] = Pieces(self._backend, skip_special_tokens)
        return self._pieces[skip_special_tokens]


class _SpecialTokens:
    """The ids that a checkpoint's files give for a role: "bos", "eos" or "pad"."""

    def __init__(self, directory: Path, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._tokenizer_config = _read_json(directory / "tokenizer_config.json")
        self._special_tokens_map = _read_json(directory / "special_tokens_map.json")
        self._generation_config = _read_json(directory / "generation_config.json")
        self._config = _read_json(directory / "config.json")

    def main_id(self, role: str) -> int | None:
        ids = self.tokenizer_ids(role) or self.generation_ids(role) or self.model_ids(role)
        return ids[0] if ids else None

    def generation_ids(self, role: str) -> list[int]:
        return _ids(self._generation_config, role)

    def model_ids(self, role: str) -> list[int]:
        return _ids(self._config, role)

    def tokenizer_ids(self, role: str) -> list[int]:
        for names in (self._tokenizer_config, self._special_tokens_map):
            token = names.get(f"{role}_token")
            content = token.get("content") if isinstance(token, dict) else token
            token_id = self._backend.token_to_id(content) if isinstance(content, str) else None
            if token_id is not None:
                return [token_id]
        return []


def _ids(config: dict[str, Any], role: str) -> list[int]:
    value = config.get(f"{role}_token_id")
    candidates = value if isinstance(value, list) else [value]
    # Some checkpoints write -1 for "none".
    return [token_id for token_id in candidates if type(token_id) is int and token_id >= 0]


def _read_tokenizer(directory: Path) -> tokenizers.Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        hint = ""
        if (directory / "tokenizer.model").is_file():
            hint = "; tokenizer.model alone is not enough, save the tokenizer with transformers to create it"
        raise TokenizerError(f"{path} is missing{hint}")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file that a checkpoint need not have."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} cannot be read: expected an object, found {type(content).__name__}")
    return content
