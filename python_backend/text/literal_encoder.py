"""Encodes texts that name special tokens without meaning them, beside others that are meant."""

import json
import re
import secrets
from collections.abc import Sequence

import tokenizers


class LiteralEncoder:
    """A copy of a tokenizer in which every added token goes by another name, which nobody can guess.

    In a text, tokens that are meant get that name, and what is marked stays as it is written: letters like
    any others, for the same rules and merges. So all else has the ids it would have had.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        copied = json.loads(backend.to_str())
        secret = secrets.token_hex(16)
        self._names: dict[str, str] = {}
        texts: dict[int, str] = {}
        for token in copied["added_tokens"]:
            if token["content"].strip():  # spaces mean nothing but spaces
                name = f"\ue000{secret}.{token['id']}\ue001"
                self._names[token["content"]], texts[token["id"]] = name, token["content"]
                token["content"] = name
        self._backend = tokenizers.Tokenizer.from_str(json.dumps(copied))
        self._backend.no_truncation()
        self._backend.no_padding()
        # The copy has ids of its own for what is not in the vocabulary.
        self._meant = {
            self._backend.token_to_id(token["content"]): token["id"] for token in copied["added_tokens"]
        }
        # What stands for letters that the model does not know is no leak.
        unknown = copied["model"].get("unk_token"), copied["model"].get("unk_id")
        self._leaks = {at: text for at, text in texts.items() if text not in unknown and at not in unknown}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def encode_batch(self, texts: Sequence[str], mark: str, add_special_tokens: bool) -> list[list[int]]:
        renamed = [
            self._tokens.sub(lambda found: self._names[found[0]], text).replace(mark, "") for text in texts
        ]
        found = self._backend.encode_batch_fast(renamed, add_special_tokens=add_special_tokens)
        return [self._ids(encoding.ids) for encoding in found]

    def _ids(self, found: list[int]) -> list[int]:
        ids: list[int] = []
        for token_id in found:
            if token_id in self._meant:
                ids.append(self._meant[token_id])
            elif token_id in self._leaks:
                # Some models find their special tokens in the vocabulary too.
                ids += self._spelled(self._leaks[token_id])
            else:
                ids.append(token_id)
        return ids

    def _spelled(self, text: str) -> list[int]:
        letters = self._backend.encode_batch_fast(list(text), add_special_tokens=False)
        return [token_id for letter in letters for token_id in letter.ids if token_id not in self._leaks]
