"""Whether a release fits into memory, of the machine or of its GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.control.releases.memory_fit import FreeMemory, fitting, misfit
from router.core.manifest import Needs

GIB = 1 << 30


def most_by_trying(rooms: list[int], size: int) -> int:
    """One replica after the other, on every choice of GPUs."""
    best = 0
    for chosen in combinations(range(len(rooms)), size):
        if all(rooms[number] for number in chosen):
            left = [room - (number in chosen) for number, room in enumerate(rooms)]
            best = max(best, 1 + most_by_trying(left, size))
    return best


@given(
    rooms=st.lists(st.integers(0, 3), max_size=4),
    size=st.integers(1, 3),
    each=st.integers(1, 7),
    data=st.data(),
)
def test_as_many_replicas_fit_as_trying_finds(
    rooms: list[int], size: int, each: int, data: st.DataObject
) -> None:
    free = [room * each + data.draw(st.integers(0, each - 1)) for room in rooms]
    assert fitting(free, each, size) == most_by_trying(rooms, size)


@pytest.mark.parametrize(
    ("needs", "servers", "free"),
    [
        (Needs(4 * GIB, GIB), 1, FreeMemory(5 * GIB)),
        (Needs(4 * GIB, GIB), 1, FreeMemory(None)),
        (Needs(12 * GIB, gpus=1), 2, FreeMemory(0, (12 * GIB, 13 * GIB))),
        (Needs(12 * GIB, gpus=1), 2, FreeMemory(0, (24 * GIB,))),
        (Needs(12 * GIB, gpus=4), 1, FreeMemory(0, (3 * GIB,) * 4)),
        (Needs(12 * GIB, gpus=1), 2, FreeMemory(0, None)),
        (Needs(0, gpus=2), 2, FreeMemory(0, ())),
    ],
)
def test_what_fits_or_cannot_be_told_is_loaded(needs: Needs, servers: int, free: FreeMemory) -> None:
    assert misfit(needs, servers, free) is None


@pytest.mark.parametrize(
    ("needs", "servers", "free", "said"),
    [
        (Needs(5 * GIB), 2, FreeMemory(9 * GIB), ["10.0 GiB of memory on 2 servers", "9.0 GiB are free"]),
        (Needs(12 * GIB, gpus=1), 1, FreeMemory(99 * GIB, (8 * GIB,)), ["12.0 GiB of a GPU;", "8.0 GiB"]),
        (Needs(12 * GIB, gpus=1), 3, FreeMemory(0, (24 * GIB, GIB)), ["a GPU on 3 servers", "24.0, 1.0 GiB"]),
        (Needs(12 * GIB, gpus=2), 1, FreeMemory(0, (99 * GIB,)), ["6.0 GiB of each of 2 GPUs", "99.0"]),
        (Needs(12 * GIB, gpus=1), 1, FreeMemory(0, ()), ["free on the GPUs of this machine: 0 GiB"]),
    ],
)
def test_what_does_not_fit_is_refused_with_figures(
    needs: Needs, servers: int, free: FreeMemory, said: Iterable[str]
) -> None:
    found = misfit(needs, servers, free)
    assert found is not None
    assert all(each in found for each in said), found
