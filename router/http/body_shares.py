"""How the slots for large bodies are divided among those who send them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UploadTerms:
    """What an upload may come to, and who answers for it."""

    max_bytes: int
    holder: str


class UploadSlots:
    """A holder gets another slot while it has fewer than are free.

    So one alone gets half of them, several get equal parts, and a part as large as theirs is left for the
    next: whoever keeps slots with slow bodies keeps them from itself.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._held: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._held.total()

    def take(self, holder: str) -> bool:
        if self._held[holder] >= self._total - self.taken:
            return False
        self._held[holder] += 1
        return True

    def give_back(self, holder: str) -> None:
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]
