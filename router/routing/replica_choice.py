"""Which replica gets a request."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol, TypeVar
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of a prompt: enough to tell conversations apart, and no more than all turns of one have in common.
OPENING_CHARS = 512
# An answer may be long, and seldom is.
EXPECTED_TOKENS = 256
# What is under way is never nothing: an answer that is longer than expected still takes its share.
LEAST_TOKENS = 16
_LEAST_SLACK_TOKENS = 1024
_64_BITS = 2**64 - 1
_MIXER = 0x9E3779B97F4A7C15  # 2**64 by the golden ratio: the upper bits come of all lower ones


class Candidate(Protocol):
    """A replica that may take the request; `begun` is how many it was sent so far."""

    @property
    def name(self) -> str: ...
    @property
    def outstanding_tokens(self) -> int: ...
    @property
    def begun(self) -> int: ...


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)


def most_tokens(least_tokens: int) -> int:
    """What a replica may have to do and still be preferred for what its cache holds."""
    return least_tokens + max(_LEAST_SLACK_TOKENS, least_tokens // 4)


def choose(candidates: Sequence[AnyCandidate], key: bytes | None) -> AnyCandidate | None:
    """The one that the key belongs to, unless it is overloaded beside the least loaded.

    A key belongs to the replica with the largest hash of both. So when one leaves, only its own keys move,
    and they come back with it.
    """
    if not candidates:
        return None
    least_loaded = min(candidates, key=_load)
    if key is not None:
        number = crc32(key)
        home = max(candidates, key=lambda each: (number ^ _name_number(each.name)) * _MIXER & _64_BITS)
        if home.outstanding_tokens <= most_tokens(least_loaded.outstanding_tokens):
            return home
    return least_loaded


def _load(candidate: Candidate) -> tuple[int, int, str]:
    return candidate.outstanding_tokens, candidate.begun, candidate.name


@lru_cache(maxsize=1024)
def _name_number(name: str) -> int:
    """The same in every router, as that of the key is."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def answer_tokens(max_tokens: int, context_tokens: int) -> int:
    """What is to be expected of an answer before it begins."""
    return max(min(max_tokens, context_tokens, EXPECTED_TOKENS), LEAST_TOKENS)
