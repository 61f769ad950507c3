"""Blocks that running sequences are about to fill, for those that would have to compute the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from python_backend.engine.sequence import Sequence


class BlocksInProgress:
    """The block that each running sequence will fill next: all before it can be found already.

    Steps that run have filled it perhaps, but only what they are known to have computed can be found.
    """

    def __init__(self, running: Iterable[Sequence], tokens_per_block: int) -> None:
        self._size = tokens_per_block
        # Number of a block -> hash of one that is being computed -> by whom.
        self._computing: dict[int, dict[bytes, Sequence]] = {}
        for sequence in running:
            self.note(sequence)

    def note(self, sequence: Sequence) -> None:
        number = sequence.computed_tokens // self._size + 1
        if sequence.pending_tokens > 1 and number < len(sequence.hashes):
            computing = self._computing.setdefault(number, {})
            first = computing.setdefault(sequence.hashes[number], sequence)
            if sequence.rank < first.rank:
                computing[sequence.hashes[number]] = sequence

    def comes_soon(self, sequence: Sequence) -> bool:
        """Whether one before it in rank is computing what it would have to compute next."""
        if sequence.awaits_leader:
            return True
        if not self._computing or sequence.may_fork or not sequence.may_skip_prompt:
            return False
        last = (len(sequence.tokens) - 1) // self._size
        return any(
            number <= last
            and (other := computing.get(sequence.hashes[number])) is not None
            and other.rank < sequence.rank
            for number, computing in self._computing.items()
        )
