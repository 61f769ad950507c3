"""Whole answers in this router's memory, bounded by tenant and in all; the least recently used go first."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

_ANSWER_BYTES = 1000  # what one takes beside its text


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer as it left, whole or as a stream, and what it took to make it."""

    tenant: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    is_stream: bool
    model: str
    release: str
    prompt_tokens: int
    completion_tokens: int
    made_s: float

    @property
    def size_bytes(self) -> int:
        return len(self.body) + _ANSWER_BYTES


class KeptAnswers:
    """By a name that only the tenant's own requests can have. One tenant may fill a quarter of it."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[bytes, KeptAnswer] = OrderedDict()
        self._names: dict[str, OrderedDict[bytes, None]] = {}
        self._held: Counter[str] = Counter()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: bytes) -> KeptAnswer | None:
        kept = self._kept.get(name)
        if kept is not None:
            self._kept.move_to_end(name)
            self._names[kept.tenant].move_to_end(name)
        return kept

    def put(self, name: bytes, answer: KeptAnswer) -> None:
        self.drop(name)
        own_bytes = self._most_bytes // 4
        if answer.size_bytes > own_bytes:
            return
        while self._held[answer.tenant] + answer.size_bytes > own_bytes:
            self.drop(next(iter(self._names[answer.tenant])))
        while self.size_bytes + answer.size_bytes > self._most_bytes:
            self.drop(next(iter(self._kept)))
        self._kept[name] = answer
        self._names.setdefault(answer.tenant, OrderedDict())[name] = None
        self._hold(answer.tenant, answer.size_bytes)

    def drop(self, name: bytes) -> None:
        answer = self._kept.pop(name, None)
        if answer is None:
            return
        names = self._names[answer.tenant]
        del names[name]
        if not names:
            del self._names[answer.tenant]
        self._hold(answer.tenant, -answer.size_bytes)

    def _hold(self, tenant: str, more_bytes: int) -> None:
        self.size_bytes += more_bytes
        self._held[tenant] += more_bytes
        if not self._held[tenant]:
            del self._held[tenant]

    def check(self) -> None:
        """Raises where the books do not agree."""
        sizes: Counter[str] = Counter()
        for answer in self._kept.values():
            sizes[answer.tenant] += answer.size_bytes
        assert sizes == self._held, (sizes, self._held)
        assert sizes.total() == self.size_bytes <= self._most_bytes
        assert all(held <= self._most_bytes // 4 for held in sizes.values())
        assert {name for names in self._names.values() for name in names} == self._kept.keys()
