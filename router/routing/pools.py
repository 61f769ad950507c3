"""Which replicas answer, and which of them compute prompts for the others.

Whoever answers can compute the prompt too, and whoever computes prompts can answer: so nothing depends on
either pool, and a prompt goes elsewhere only where that is worth a second request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from python_backend.wire.pools import DECODE, PREFILL
from router.routing.replica_choice import Candidate, Opening, choose, most_tokens


class Pooled(Candidate, Protocol):
    @property
    def pool(self) -> str: ...


AnyPooled = TypeVar("AnyPooled", bound=Pooled)


def answering(able: Sequence[AnyPooled]) -> Sequence[AnyPooled]:
    """All that are not there for prompts; where no other is left, those."""
    return [each for each in able if each.pool != PREFILL] or able


def prompt_place(able: Sequence[AnyPooled], opening: Opening, least_tokens: int) -> AnyPooled | None:
    """Who computes a prompt before another answers it; None where whoever answers does.

    A prompt below `least_tokens` is not worth it, nor is one that would wait longer than where it is
    answered: those who compute prompts may have as much more to do than those who answer as a replica may
    that is chosen for what its cache holds.
    """
    takers = [each for each in able if each.pool == DECODE]
    if opening.tokens < least_tokens or not takers:
        return None
    chosen = choose([each for each in able if each.pool == PREFILL], opening)
    most = most_tokens(min(each.outstanding_tokens for each in takers), opening.tokens)
    return chosen if chosen is not None and chosen.outstanding_tokens <= most else None
