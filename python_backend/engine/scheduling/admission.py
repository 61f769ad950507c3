"""When a waiting sequence may join the batch, and how much of the cache it takes when it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from python_backend.engine.sequence import Sequence


class AdmissionRule(Protocol):
    @property
    def lets_wait(self) -> bool:
        """Whether one that does not join now may join the same batch in a later step."""

    def is_open(self, running_before: int, budget_tokens: int) -> bool:
        """Whether one more may join; `running_before` counts the batch without this step's joiners."""

    def tokens_to_hold(self, sequence: Sequence) -> int:
        """How many tokens' blocks the sequence takes at once."""

    def blocks_to_leave(self, running: int) -> int:
        """How many blocks must stay free after it joined."""


class GuaranteedNoEvict:
    """A sequence takes all the blocks it can ever need, so that no other's growth takes them from it.

    The promise holds within a tier and towards worse ones: a waiting sequence of a better tier still takes
    the slot of a running one. Without that, a few long answers of the lowest tier would keep everyone out,
    which is what tiers are there to prevent.
    """

    lets_wait = True

    def is_open(self, running_before: int, budget_tokens: int) -> bool:
        return budget_tokens > 0

    def tokens_to_hold(self, sequence: Sequence) -> int:
        return sequence.most_cached_tokens

    def blocks_to_leave(self, running: int) -> int:
        return 0


class MaxUtilization:
    """A sequence takes the blocks of the tokens it has; when growth empties the pool, the last is preempted.

    One block for each running sequence stays free: without it, the joiner would be the first to be
    preempted, as soon as any of the others reached the end of a block.
    """

    lets_wait = True

    def is_open(self, running_before: int, budget_tokens: int) -> bool:
        return budget_tokens > 0

    def tokens_to_hold(self, sequence: Sequence) -> int:
        return len(sequence.tokens)

    def blocks_to_leave(self, running: int) -> int:
        return running


class StaticBatch:
    """A batch forms at once, and the next one only when all of it has ended (`gpt_model_type` V1)."""

    lets_wait = False

    def __init__(self, inner: AdmissionRule) -> None:
        self._inner = inner

    def is_open(self, running_before: int, budget_tokens: int) -> bool:
        return running_before == 0

    def tokens_to_hold(self, sequence: Sequence) -> int:
        return self._inner.tokens_to_hold(sequence)

    def blocks_to_leave(self, running: int) -> int:
        return self._inner.blocks_to_leave(running)


def admission_rule(guaranteed_no_evict: bool, static_batching: bool) -> AdmissionRule:
    rule: AdmissionRule = GuaranteedNoEvict() if guaranteed_no_evict else MaxUtilization()
    return StaticBatch(rule) if static_batching else rule
