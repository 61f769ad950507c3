"""Long texts that begin like an earlier one are tokenized from shortly before where they differ.

A conversation comes back whole with every turn, and a document with every question about it: a hundred
thousand tokens of text, of which a few are new, take a tenth of a second otherwise.

That may be done where a word ends that both texts have in common, for tokenizers that cut a text into words
before anything else: nothing behind the word can change the tokens before its end. As a check, the next words
are encoded once more and must give the tokens of the earlier text.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tokenizers

# Shorter texts take less than two milliseconds.
LEAST_CHARACTERS = 8192
_MOST_TEXTS, _MOST_CHARACTERS = 16, 16 << 20
# How far from a text's end are the places from which another may go on, and how much is checked there.
_DISTANCES = (16384, 2048)
_CHECKED_CHARACTERS = 256
_MOST_PLACES = 16
# A tokenizer that gave other tokens so often is not trusted any more.
_MOST_DIFFERENCES = 3
_MODELS = ("BPE", "WordLevel", "WordPiece")
_BETWEEN_WORDS = re.compile("(?<=[A-Za-z0-9]) (?=[A-Za-z])")


class _Place(NamedTuple):
    """Token `token` begins at the character `begin`; up to `end`, where a word does, go `checked` tokens."""

    begin: int
    end: int
    token: int
    checked: int


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    ids: array[int]  # without those that end every text
    places: tuple[_Place, ...]


class RememberedTexts:
    """Those of each tenant are for that tenant alone: how long a text takes would tell others of it."""

    def __init__(self, backend: tokenizers.Tokenizer, is_trusted: bool) -> None:
        """What to trust, `cuts_words_first` says."""
        self._backend = backend
        self._is_trusted = is_trusted
        self._differences = 0
        self._texts: OrderedDict[tuple[str, bool, str], _Text] = OrderedDict()
        self._characters = 0
        bare, whole = (self._encode("a", flag) for flag in (False, True))
        begin = next(at for at in range(len(whole) + 1) if whole[at : at + len(bare)] == bare)
        self._endings = {False: array("i"), True: whole[begin + len(bare) :]}

    def encode_batch(
        self, texts: Sequence[str], whose: Sequence[str], add_special_tokens: bool
    ) -> list[array[int]]:
        """As the tokenizer encodes them; each text is somebody's."""
        is_long = [self._is_trusted and len(text) >= LEAST_CHARACTERS for text in texts]
        short = [text for text, long in zip(texts, is_long, strict=True) if not long]
        encodings = iter(self._backend.encode_batch_fast(short, add_special_tokens=add_special_tokens))
        return [
            self._encode_long(owner, text, add_special_tokens) if long else array("i", next(encodings).ids)
            for text, owner, long in zip(texts, whose, is_long, strict=True)
        ]

    def _encode_long(self, whose: str, text: str, add_special_tokens: bool) -> array[int]:
        ending = self._endings[add_special_tokens]
        found = self._continued(whose, text, add_special_tokens)
        if found is None:
            ids = self._encode(text, add_special_tokens)
            ids = ids[: len(ids) - len(ending)]
            found = _Text(text, ids, self._places(text, ids, 0))
        self._remember((whose, add_special_tokens, text), found)
        return found.ids + ending

    def _encode(self, text: str, add_special_tokens: bool = False) -> array[int]:
        return array(
            "i", self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        )

    def _continued(self, whose: str, text: str, add_special_tokens: bool) -> _Text | None:
        """From the last place that an earlier text shares with this one."""
        earlier: _Text | None = None
        before: tuple[_Place, ...] = ()
        for (owner, flag, _), other in self._texts.items():
            if owner == whose and flag is add_special_tokens:
                shared = _shared(other.text, text)
                number = bisect_left(other.places, shared, key=lambda place: place.end)
                if number and (not before or other.places[number - 1] > before[-1]):
                    earlier, before = other, other.places[:number]
        if earlier is None:
            return None
        place = before[-1]
        rest = self._encode(text[place.begin :])
        if rest[: place.checked] != earlier.ids[place.token : place.token + place.checked]:
            self._differences += 1
            self._is_trusted = self._differences < _MOST_DIFFERENCES
            return None
        ids = earlier.ids[: place.token] + rest
        places = (*before, *self._places(text, ids, place.begin + 1))
        return _Text(text, ids, places[-_MOST_PLACES:])

    def _places(self, text: str, ids: array[int], first: int) -> tuple[_Place, ...]:
        """From the character `first` on."""
        found: list[_Place] = []
        for distance in _DISTANCES:
            begin = _word_end(text, max(first, len(text) - distance))
            end = None if begin is None else _word_end(text, begin + _CHECKED_CHARACTERS)
            if begin is None or end is None or (found and begin <= found[-1].end):
                continue
            rest, checked = self._encode(text[begin:]), self._encode(text[begin:end])
            token = len(ids) - len(rest)
            if ids[token:] == rest and rest[: len(checked)] == checked:
                found.append(_Place(begin, end, token, len(checked)))
        return tuple(found)

    def _remember(self, key: tuple[str, bool, str], found: _Text) -> None:
        if self._texts.pop(key, None) is not None:
            self._characters -= len(found.text)
        self._texts[key] = found
        self._characters += len(found.text)
        while len(self._texts) > _MOST_TEXTS or self._characters > _MOST_CHARACTERS:
            _, oldest = self._texts.popitem(last=False)
            self._characters -= len(oldest.text)


def cuts_words_first(told: dict[str, Any]) -> bool:
    """By a tokenizer.json: whether no token reaches over a word's end, and no rule looks back over it."""
    before = told.get("pre_tokenizer")
    return told["model"].get("type") in _MODELS and before is not None and "(?<" not in json.dumps(before)


def _shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    if other.startswith(one):
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _word_end(text: str, first: int) -> int | None:
    found = _BETWEEN_WORDS.search(text, first)
    return None if found is None else found.start()
