"""Which GPUs the Triton servers of a machine get: each as many as its engine computes on, side by side."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def gpus_of_one(engine: Mapping[str, str]) -> int:
    """How many an engine with these parameters computes on."""
    return prod(int(engine.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline", "data"))


def groups_of(gpus: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Neighbours, which are joined best; what is left over is of no use to an engine of that size."""
    return [tuple(gpus[begin : begin + size]) for begin in range(0, len(gpus) - size + 1, size)]


def place_of(number: int, groups: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Of the server with that number, from 0: one group after the other, and round again."""
    return groups[number % len(groups)]


def servers_for_all(gpus: int, size: int) -> int:
    """As many as have GPUs of their own; one at least, which says what it lacks."""
    return max(gpus // size, 1)
