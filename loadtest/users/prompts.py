"""What users ask: texts of realistic lengths, each one new unless a shared beginning is asked for."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.traces import Trace

# Words that most tokenizers have as one token with the space before them.
_TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an "
    "they which one you were all her she there would their we him been has when who will no more if out so "
    "up said what its about than into them can only other time new some could these two may first then do "
    "any like my now over such our man me even most made after also did many off before must well back "
    "through years where much your way down should because long each just state those people too little "
    "good world make very year still see own work men day get here old life both between being under three "
    "never know same last another while us might great go come since against right came take used himself "
    "few house use place during high without again home around small however found part school thought"
)
_WORDS = _TEXT.split()
_SPREAD = 0.7  # of the logarithm of lengths: a tenth is 2.5 times the median or more


@dataclass(frozen=True)
class Lengths:
    """Of one request, in tokens."""

    prompt_tokens: int
    answer_tokens: int


class PromptWriter:
    """Texts for one user, the same for the same seed.

    Lengths are drawn from a trace's requests where there is one, each prompt with its own answer, else
    lognormal about the medians; what is longer than `longest_tokens` is cut to it.
    """

    def __init__(
        self,
        seed: str,
        prompt_tokens: int,
        answer_tokens: int,
        longest_tokens: int,
        trace: Trace | None = None,
        shared_tokens: int = 0,
        shared_seed: str = "",
    ) -> None:
        given = {"prompt": prompt_tokens, "answer": answer_tokens, "longest": longest_tokens}
        for name, value in given.items():
            if value < 1:
                raise ValueError(f"--{name}-tokens is {value}; it must be at least 1")
        self._chance = random.Random(seed)
        self._medians = Lengths(prompt_tokens, answer_tokens)
        self._longest = longest_tokens
        self._requests: Sequence[Lengths] = (
            [Lengths(each.prompt_tokens, each.output_tokens) for each in trace.requests] if trace else ()
        )
        # Whoever has the same `shared_seed` begins with the same words.
        self.shared_text = words(random.Random(shared_seed), shared_tokens)

    def lengths(self) -> Lengths:
        if self._requests:
            drawn = self._chance.choice(self._requests)
        else:
            medians = self._medians
            drawn = Lengths(self._about(medians.prompt_tokens), self._about(medians.answer_tokens))
        return Lengths(min(drawn.prompt_tokens, self._longest), min(drawn.answer_tokens, self._longest))

    def text(self, tokens: int) -> str:
        """So many tokens, or nearly; no two are alike from the first words on."""
        return words(self._chance, tokens)

    def pause_s(self, mean_s: float) -> float:
        """Between an answer and the next question: exponential, so that users do not fall into step."""
        return min(10 * mean_s, self._chance.expovariate(1 / mean_s)) if mean_s > 0 else 0.0

    def turns(self, mean: int) -> int:
        """Of a conversation: from 1 to twice the mean."""
        return self._chance.randint(1, max(1, 2 * mean - 1))

    def number(self) -> int:
        return self._chance.getrandbits(31)

    def _about(self, median: float) -> int:
        return max(1, round(median * math.exp(_SPREAD * self._chance.gauss(0.0, 1.0))))


def words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(_WORDS, k=count))
