"""Who runs, who waits and who of these is paused, by rank; and how many places each tenant has."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from python_backend.sharing.places import Places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from python_backend.sharing.places import Holder

_rank = attrgetter("rank")
# Of one sequence. One that was paused for so long goes on whatever the others lose by it.
MOST_PAUSES = 4
LONGEST_PAUSE_NS = 20_000_000_000


class Member(Protocol):
    """A sequence of the engine, or of the simulator; its place is its holder's."""

    is_paused: bool
    pauses: int
    paused_ns: int
    paused_since_ns: int

    @property
    def rank(self) -> tuple[int, ...]:
        """The tier, and then the order of arrival."""

    @property
    def holder(self) -> Holder: ...

    @property
    def weight(self) -> float:
        """The holder's."""

    @property
    def has_blocks(self) -> bool: ...

    def pause(self, now_ns: int) -> None: ...

    def resume(self, now_ns: int) -> None: ...


AnyMember = TypeVar("AnyMember", bound=Member)


class Batch(Generic[AnyMember]):
    """`limit` is how many may join; `most` how many there can be at all."""

    def __init__(self, most: int) -> None:
        self.running: list[AnyMember] = []
        self.waiting: list[AnyMember] = []
        self.paused: list[AnyMember] = []  # of those that wait
        self.places = Places()
        self.most = self.limit = most
        self.now_ns = 0
        self._waiting_of: dict[Holder, int] = {}
        self._weights: dict[Holder, float] = {}

    @property
    def is_full(self) -> bool:
        return len(self.running) >= self.limit

    def has_tier(self, tier: int) -> bool:
        """Whether a sequence of that tier runs or waits."""
        for row in (self.running, self.waiting):
            first = bisect_left(row, (tier,), key=_rank)
            if first < len(row) and row[first].rank[0] == tier:
                return True
        return False

    # Moves

    def put(self, sequence: AnyMember) -> None:
        """It has come, and waits; its holder's weight is what the latest to come says."""
        if sequence.weight not in (0.0, 1.0):
            self._weights[sequence.holder] = sequence.weight
        else:
            self._weights.pop(sequence.holder, None)
        self._wait(sequence)

    def enter(self, sequence: AnyMember) -> int:
        """It runs from now on; returns where it waited."""
        position = bisect_left(self.waiting, sequence.rank, key=_rank)
        del self.waiting[position]
        self._wait_no_more(sequence)
        insort(self.running, sequence, key=_rank)
        self.places.take(sequence.holder, self._weight(sequence.holder))
        if sequence.is_paused:
            self.paused.remove(sequence)
            sequence.resume(self.now_ns)
        return position

    def leave(self, sequence: AnyMember) -> None:
        """It does not run any more, and waits."""
        del self.running[bisect_left(self.running, sequence.rank, key=_rank)]
        self.places.give_back(sequence.holder)
        self._wait(sequence)

    def pause(self, sequence: AnyMember) -> None:
        self.leave(sequence)
        sequence.pause(self.now_ns)
        insort(self.paused, sequence, key=_rank)

    def remove(self, sequences: Sequence[AnyMember]) -> None:
        """They ended, wherever they were."""
        gone = set(sequences)
        for sequence in gone.intersection(self.running):
            self.places.give_back(sequence.holder)
        for sequence in gone.intersection(self.waiting):
            self._wait_no_more(sequence)
        self.running = [sequence for sequence in self.running if sequence not in gone]
        self.waiting = [sequence for sequence in self.waiting if sequence not in gone]
        if self.paused:
            self.paused = [sequence for sequence in self.paused if sequence not in gone]

    # Who gives way to whom

    def takers(self) -> set[Holder]:
        """Who waits and may take a slot or blocks from others."""
        if not self.running:
            return set()
        worst, places = self.running[-1].rank[0], self._shared_places
        takers = {
            holder
            for holder in self._waiting_of
            if (worst > holder[0] and self.places.may_preempt(holder[0], worst, places))
            or self.places.giver(holder, places, self._weight(holder)) is not None
        }
        takers.update(sequence.holder for sequence in self.paused if self.is_overdue(sequence))
        return takers

    def victim_for(self, sequence: AnyMember, but: Sequence[AnyMember]) -> AnyMember | None:
        """Who leaves next for this one: of worse tiers the last in rank, else the giver's youngest."""
        places, limit = self.places, self._shared_places
        if but:
            places = places.copy()
            for victim in but:
                places.give_back(victim.holder)
        last = next((each for each in reversed(self.running) if each not in but), None)
        if last is None:
            return None
        if last.rank[0] > sequence.rank[0] and places.may_preempt(sequence.rank[0], last.rank[0], limit):
            return last
        giver = places.giver(sequence.holder, limit, self._weight(sequence.holder))
        return None if giver is None else self._youngest_of(giver, but)

    def surplus(self) -> AnyMember | None:
        """Who is to be paused where too many run."""
        furthest = self.places.furthest()
        return None if furthest is None else self._youngest_of(furthest, ())

    def is_outdone(self, paused: AnyMember) -> bool:
        """Whether somebody waits for whom it would have to be paused again."""
        if not self.running or self.is_overdue(paused):
            return False
        wanted = (self.places.held(paused.holder) + 1) / self._weight(paused.holder)
        return any(
            holder[0] == paused.rank[0] and (self.places.held(holder) + 1) / self._weight(holder) < wanted
            for holder in self._waiting_of
        )

    def may_exceed(self, sequence: AnyMember) -> bool:
        """Whether it runs beside all others: it is overdue, or those who owe it a slot may not be paused."""
        if len(self.running) >= self.most:
            return False
        if self.is_overdue(sequence):
            return True
        holder = sequence.holder
        giver = self.places.giver(holder, self._shared_places, self._weight(holder))
        return giver is not None and self._youngest_of(giver, ()) is None

    def is_overdue(self, sequence: AnyMember) -> bool:
        """Whether it was paused for so long that it goes on beside all that run."""
        if not sequence.is_paused or len(self.running) >= self.most:
            return False
        return sequence.paused_ns + self.now_ns - sequence.paused_since_ns >= LONGEST_PAUSE_NS

    def keeping(self, but: AnyMember) -> list[AnyMember]:
        """Those that wait with blocks; the last is the first to lose them."""
        return [each for each in self.paused if each.has_blocks and each is not but] if self.paused else []

    def check(self) -> None:
        """Raises AssertionError where the books are wrong; for tests."""
        for row in (self.running, self.waiting, self.paused):
            assert [each.rank for each in row] == sorted(each.rank for each in row)
        assert self.paused == [each for each in self.waiting if each.is_paused]
        assert not any(each.is_paused for each in self.running)
        assert sum(self._waiting_of.values()) == len(self.waiting)
        assert self.places.total == len(self.running)
        assert all(each.pauses <= MOST_PAUSES for each in (*self.running, *self.waiting))
        self.places.check()

    @property
    def _shared_places(self) -> int:
        """So many can run: as many as may, or as do where it is blocks that are lacking."""
        return max(1, min(self.limit, len(self.running)))

    def _youngest_of(self, holder: Holder, but: Sequence[AnyMember]) -> AnyMember | None:
        """Of those that were paused least, so that none comes to its bound before the others."""
        found = [
            each
            for each in reversed(self.running)
            if each.holder == holder and each not in but and may_pause(each)
        ]
        return min(found, key=attrgetter("pauses"), default=None)

    def _weight(self, holder: Holder) -> float:
        return self._weights.get(holder, 1.0)

    def _wait(self, sequence: AnyMember) -> None:
        insort(self.waiting, sequence, key=_rank)
        self._waiting_of[sequence.holder] = self._waiting_of.get(sequence.holder, 0) + 1

    def _wait_no_more(self, sequence: AnyMember) -> None:
        left = self._waiting_of[sequence.holder] - 1
        if left:
            self._waiting_of[sequence.holder] = left
        else:
            del self._waiting_of[sequence.holder]


def may_pause(sequence: Member) -> bool:
    """Whether it was paused neither too often nor for too long in all."""
    return sequence.pauses < MOST_PAUSES and sequence.paused_ns < LONGEST_PAUSE_NS
