"""How the room for large bodies is divided among those who send them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BodyTerms:
    """Who answers for a large body; `max_upload_bytes` of one that is read onto the disk, None in memory."""

    holder: str
    max_upload_bytes: int | None = None


class BodyShares:
    """A holder gets more while it has less than is free: of the places on the disk, or of bytes in memory.

    So one alone gets half of them, several get equal parts, and a part as large as theirs is left for the
    next: whoever keeps places with slow bodies keeps them from itself.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._held: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._held.total()

    def take(self, holder: str, amount: int = 1) -> bool:
        if self._held[holder] + amount > self._total - self.taken:
            return False
        self._held[holder] += amount
        return True

    def give_back(self, holder: str, amount: int = 1) -> None:
        self._held[holder] -= amount
        if not self._held[holder]:
            del self._held[holder]
