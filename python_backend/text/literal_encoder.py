"""Encodes texts that name special tokens without meaning them, beside others that are meant."""

from __future__ import annotations

import json
import re
import secrets
from array import array
from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

import numpy as np
import tokenizers

from python_backend.text.remembered_texts import RememberedTexts, cuts_words_first


class LiteralEncoder:
    """A copy of a tokenizer in which every added token goes by another name, which nobody can guess.

    In a text, tokens that are meant get that name, and what is marked stays as it is written: letters like
    any others, for the same rules and merges. So all else has the ids it would have had.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        told = json.loads(backend.to_str())
        secret = secrets.token_hex(16)
        self._names: dict[str, str] = {}
        texts: dict[int, str] = {}
        for token in told["added_tokens"]:
            if token["content"].strip():  # spaces mean nothing but spaces
                name = f"\ue000{secret}.{token['id']}\ue001"
                self._names[token["content"]], texts[token["id"]] = name, token["content"]
                token["content"] = name
        self._backend = _with_tokens(backend, told["added_tokens"])
        self.cuts_words_first = cuts_words_first(told)
        self._texts = RememberedTexts(self._backend, self.cuts_words_first)
        # The copy has ids of its own for what is not in the vocabulary.
        own = self._backend.get_vocab()
        self._meant = {own[token["content"]]: token["id"] for token in told["added_tokens"]}
        # What stands for letters that the model does not know is no leak.
        unknown = told["model"].get("unk_token"), told["model"].get("unk_id")
        self._leaks = {at: text for at, text in texts.items() if text not in unknown and at not in unknown}
        # By the copy's id: what is meant, or -1 where that has to be looked at.
        self._known = np.arange(1 + max([*own.values(), *self._leaks]), dtype=np.int32)
        self._known[list(self._leaks)] = -1
        self._known[list(self._meant)] = list(self._meant.values())
        tokens = _longest_of(set(self._names)) if self._names else "(?!)"
        self._tokens, self._starts = re.compile(tokens), re.compile(f"(?s)(?={tokens}).")
        self._spellings: dict[int, list[int]] = {}

    def marked(self, text: str, mark: str) -> str:
        """With marks in what would be special tokens."""
        return self._starts.sub(rf"\g<0>{mark}", text)

    def encode_batch(
        self, texts: Sequence[str], mark: str, add_special_tokens: bool, whose: str | None = None
    ) -> list[array[int]]:
        """Where it is said whose they are, long ones are remembered for that tenant."""
        renamed = [
            self._tokens.sub(lambda found: self._names[found[0]], text).replace(mark, "") for text in texts
        ]
        if whose is None:
            encodings = self._backend.encode_batch_fast(renamed, add_special_tokens=add_special_tokens)
            found = [array("i", encoding.ids) for encoding in encodings]
        else:
            found = self._texts.encode_batch(renamed, [whose] * len(renamed), add_special_tokens)
        return [self._ids(ids) for ids in found]

    def _ids(self, found: array[int]) -> array[int]:
        if not found:
            return found
        known = self._known[np.frombuffer(found, np.int32)]
        if known.min() >= 0:
            return array("i", known.tobytes())
        ids = array("i")
        for token_id in found:
            if token_id in self._meant:
                ids.append(self._meant[token_id])
            elif token_id in self._leaks:
                # Some models find their special tokens in the vocabulary too.
                ids.extend(self._spelled(token_id))
            else:
                ids.append(token_id)
        return ids

    def _spelled(self, token_id: int) -> list[int]:
        found = self._spellings.get(token_id)
        if found is None:
            letters = self._backend.encode_batch_fast(list(self._leaks[token_id]), add_special_tokens=False)
            found = [each for letter in letters for each in letter.ids if each not in self._leaks]
            self._spellings[token_id] = found
        return found


def _with_tokens(backend: tokenizers.Tokenizer, added: Sequence[dict[str, Any]]) -> tokenizers.Tokenizer:
    """Another tokenizer with the parts of the first: a second vocabulary takes time to read, and memory."""
    copied = tokenizers.Tokenizer(backend.model)
    copied.normalizer = backend.normalizer
    copied.pre_tokenizer = backend.pre_tokenizer
    copied.post_processor = backend.post_processor
    copied.decoder = backend.decoder
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    for add, special in ((copied.add_special_tokens, True), (copied.add_tokens, False)):
        told = [token for token in added if token["special"] is special]
        add([tokenizers.AddedToken(each["content"], **{flag: each[flag] for flag in flags}) for each in told])
    return copied


def _longest_of(texts: set[str]) -> str:
    """A pattern for the longest of them. Letter by letter: alternatives are tried one after the other, and
    some models have thousands of tokens that begin alike."""
    start = commonprefix([*texts])  # noqa: RUF071 - of characters, as is meant
    rests: dict[str, set[str]] = {}
    for text in texts - {start}:
        rests.setdefault(text[len(start)], set()).add(text[len(start) :])
    if not rests:
        return re.escape(start)
    branches = "|".join(_longest_of(rest) for _, rest in sorted(rests.items()))
    return f"{re.escape(start)}(?:{branches}){'?' if start in texts else ''}"
