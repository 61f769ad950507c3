"""What a request says about single tokens and words, in the form in which every token asks for it.

Lists may be as long as a client likes, so they are walked once. A word is then found by the token at which it
may be complete, or lack one more.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from python_backend.engine.request import GenerationRequest


class WordIndex:
    """Words under their last tokens."""

    def __init__(self, words: Iterable[tuple[int, ...]]) -> None:
        self._by_last: defaultdict[int, list[list[int]]] = defaultdict(list)
        for word in words:
            if word:
                self._by_last[word[-1]].append(list(word))

    def at_end_of(self, tokens: Sequence[int], within: int) -> bool:
        """Whether the last of `tokens` are one of the words; only the last `within` count."""
        return any(
            len(word) <= within and list(tokens[-len(word) :]) == word
            for word in self._by_last.get(tokens[-1], ())
        )


class TokenRules:
    """A request's bias and bans; ids outside the vocabulary say nothing.

    `ends` are the tokens that end an answer on their own, and not before `min_tokens`.
    """

    def __init__(self, request: GenerationRequest, vocabulary: int) -> None:
        self.biased = _ids(request.token_bias, vocabulary)
        biases = [request.token_bias[token_id] for token_id in self.biased.tolist()]
        self.biases = np.array(biases, np.float32)
        bad = [word for word in request.bad_sequences if word and 0 <= word[-1] < vocabulary]
        self.banned = _ids((word[0] for word in bad if len(word) == 1), vocabulary)
        self.ends = _ids(request.single_ends, vocabulary)
        self._begun: defaultdict[int, list[list[int]]] = defaultdict(list)
        for word in bad:
            if len(word) > 1:
                self._begun[word[-2]].append(list(word))

    def completing(self, tokens: Sequence[int]) -> list[int]:
        """Tokens that would complete a bad word of several tokens."""
        return [
            word[-1]
            for word in self._begun.get(tokens[-1], ())
            if len(word) <= len(tokens) + 1 and list(tokens[1 - len(word) :]) == word[:-1]
        ]


class TokenCounts:
    """How often each token came, from a first position on; follows tokens that only grow."""

    def __init__(self, start: int) -> None:
        self._followed = start
        self._place_of: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.int64)

    def follow(self, tokens: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The tokens that came, each once, and their counts."""
        for token_id in tokens[self._followed :]:
            place = self._place_of.setdefault(token_id, len(self._place_of))
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token_id
            self._counts[place] += 1
        self._followed = len(tokens)
        different = len(self._place_of)
        return self._ids[:different], self._counts[:different]


class Scoring:
    """One sequence's rules, which it has in common with the others of its request, and its own counts."""

    def __init__(self, rules: TokenRules, prompt_tokens: int) -> None:
        self.rules = rules
        self.all_counts = TokenCounts(0)
        self.answer_counts = TokenCounts(prompt_tokens)


def _ids(token_ids: Iterable[int], vocabulary: int) -> NDArray[np.int64]:
    return np.array([token_id for token_id in token_ids if 0 <= token_id < vocabulary], np.int64)
