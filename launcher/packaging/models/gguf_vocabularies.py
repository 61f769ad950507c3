"""Rebuilds tokenizers from the vocabularies that GGUF files carry: byte-level BPE, and SentencePiece's BPE.

A GGUF file has a vocabulary and, for byte-level BPE, merges; how a text is cut into words before merging it
has only as a name. The patterns below are those of the tokenizer.json files that the names stand for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

if TYPE_CHECKING:
    from collections.abc import Sequence

NORMAL_TOKEN, UNKNOWN_TOKEN, CONTROL_TOKEN, USER_DEFINED_TOKEN = 1, 2, 3, 4
SPACE = "▁"

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ANY_CASE = r"{contractions}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}"
BY_CASE = (
    r"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contractions}"
    r"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contractions}"
    r"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{spaces}"
)
THREE_DIGITS, ONE_DIGIT = r"\p{N}{1,3}", r"\p{N}"


class TokenizerError(Exception):
    """The GGUF file's tokenizer is not one that can be rebuilt."""


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of its tokens; `kinds` are NORMAL_TOKEN and so on."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    adds_space_prefix: bool = True
    bos_token: str | None = None
    adds_bos: bool = False
    ids: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", {token: index for index, token in enumerate(self.tokens)})


@dataclass(frozen=True)
class PreTokenizer:
    """How a byte-level BPE cuts a text before it merges.

    With `ignore_merges`, a word that is a token stays whole.
    """

    pattern: str | None
    single_digits: bool = False
    normalizes: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


LLAMA3 = PreTokenizer(
    ANY_CASE.format(contractions=CONTRACTIONS, digits=THREE_DIGITS, spaces=SPACES),
    ignore_merges=True,
    adds_bos=True,
)
SPLITTINGS = {
    "gpt-2": PreTokenizer(None),
    "smollm": PreTokenizer(None, single_digits=True),
    "llama-bpe": LLAMA3,
    "llama-v3": LLAMA3,
    "llama3": LLAMA3,
    "smaug-bpe": PreTokenizer(LLAMA3.pattern),
    "qwen2": PreTokenizer(
        ANY_CASE.format(contractions=CONTRACTIONS, digits=ONE_DIGIT, spaces=SPACES), normalizes=True
    ),
    "tekken": PreTokenizer(
        BY_CASE.format(upper=UPPER, lower=LOWER, contractions="", digits=ONE_DIGIT, spaces=SPACES),
        ignore_merges=True,
        adds_bos=True,
    ),
    "gpt-4o": PreTokenizer(
        BY_CASE.format(
            upper=UPPER, lower=LOWER, contractions=f"{CONTRACTIONS}?", digits=THREE_DIGITS, spaces=SPACES
        )
    ),
}


def byte_level(vocabulary: Vocabulary, splitting: PreTokenizer) -> Tokenizer:
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)]
    model = models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=splitting.ignore_merges)
    tokenizer = Tokenizer(model)
    if splitting.normalizes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *([pre_tokenizers.Digits(individual_digits=True)] if splitting.single_digits else []),
            *([pre_tokenizers.Split(Regex(splitting.pattern), "isolated")] if splitting.pattern else []),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.pattern is None),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _finished(tokenizer, vocabulary)


def sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    """Bytes stand in for what has no token, and a word begins with ▁."""
    kinds = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    unknown = next((token for token, kind in kinds if kind == UNKNOWN_TOKEN), None)
    model = models.BPE(
        vocab=vocabulary.ids,
        merges=merges_by_score(vocabulary),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    words: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.adds_space_prefix:
        spaces.insert(0, normalizers.Prepend(SPACE))
        words.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(words)
    return _finished(tokenizer, vocabulary)


def merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, the likeliest token first."""
    merges: list[tuple[float, str, str]] = []
    for token, kind, score in zip(vocabulary.tokens, vocabulary.kinds, vocabulary.scores, strict=True):
        if kind != NORMAL_TOKEN:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary.ids and right in vocabulary.ids:
                merges.append((score, left, right))
    merges.sort(key=lambda merge: (-merge[0], vocabulary.ids[merge[1]], vocabulary.ids[merge[2]]))
    return [(left, right) for _, left, right in merges]


def _finished(tokenizer: Tokenizer, vocabulary: Vocabulary) -> Tokenizer:
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=kind != USER_DEFINED_TOKEN, normalized=False)
            for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
            if kind in (UNKNOWN_TOKEN, CONTROL_TOKEN, USER_DEFINED_TOKEN)
        ]
    )
    if vocabulary.adds_bos and vocabulary.bos_token is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{vocabulary.bos_token} $A",
            pair=f"{vocabulary.bos_token} $A {vocabulary.bos_token} $B",
            special_tokens=[(vocabulary.bos_token, vocabulary.ids[vocabulary.bos_token])],
        )
    return tokenizer
