"""Which texts are computed side by side: in rows of one width, several short texts to a row where it pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Places computed in one go by each thread: enough for matrix products at full speed, few enough to stay in a
# core's cache.
SLICE_PLACES = 512
# Places of a row that texts share; 1: each text has a row of its own.
_CAPACITIES = (1, 32, 64, 96, 128)
WIDEST_SHARED = _CAPACITIES[-1]
# Shorter rows beside longer ones are filled up; this much may be wasted.
_MOST_WASTE = 0.1
# What a slice costs whatever is in it, in places; and the width at which attention, which compares all places
# of a row, costs as much as everything else. Measured with all-MiniLM-L6-v2.
FIXED_PLACES = 16
_EQUAL_WIDTH = 440


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of `width` places each; a row holds texts, by their index, end to end."""

    width: int
    rows: tuple[tuple[int, ...], ...]

    @property
    def places(self) -> int:
        return self.width * len(self.rows)

    def cost(self, fixed_places: int) -> float:
        return fixed_places + self.places * (1 + self.width / _EQUAL_WIDTH)


def slices_of(
    lengths: Sequence[int], most_places: int = SLICE_PLACES, fixed_places: int = FIXED_PLACES
) -> list[Slice]:
    """Every text exactly once, of several ways to share rows in the cheapest.

    Little is computed for padding: a tenth of a slice, or what another slice would cost beside its texts.
    """
    by_length = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    rows = (_rows(by_length, lengths, capacity) for capacity in _CAPACITIES)
    ways = (list(_slices(each, most_places, fixed_places)) for each in rows)
    return min(ways, key=lambda slices: sum(piece.cost(fixed_places) for piece in slices))


_Row = tuple[int, tuple[int, ...]]  # used places and texts


def _rows(by_length: Sequence[int], lengths: Sequence[int], capacity: int) -> list[_Row]:
    """The longest texts first, each where it leaves the least room, or in a row of its own."""
    rows: list[tuple[int, list[int]]] = []
    by_room: dict[int, list[int]] = {}
    for index in by_length:
        length = lengths[index]
        room = next((room for room in range(length, capacity) if by_room.get(room)), None)
        if room is None:
            room = max(capacity, length)
            rows.append((room, []))
            place = len(rows) - 1
        else:
            place = by_room[room].pop()
        rows[place][1].append(index)
        by_room.setdefault(room - length, []).append(place)
    used = ((sum(lengths[index] for index in texts), tuple(texts)) for _, texts in rows)
    return sorted(used, key=lambda row: -row[0])


def _slices(rows: Sequence[_Row], most: int, fixed: int) -> Iterator[Slice]:
    width, used = 0, 0
    taken: list[tuple[int, ...]] = []
    for length, texts in rows:
        area = width * (len(taken) + 1)
        if taken and (area > most or area - used - length > max(_MOST_WASTE * area, fixed)):
            yield Slice(width, tuple(taken))
            taken, used = [], 0
        if not taken:
            width = length
        taken.append(texts)
        used += length
    if taken:
        yield Slice(width, tuple(taken))
