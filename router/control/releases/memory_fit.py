"""Whether a release fits into the memory of this machine: its own, or that of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.manifest import Needs

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """`gpus_bytes` has each GPU's; None where nobody can tell."""

    host_bytes: int | None = None
    gpus_bytes: tuple[int, ...] | None = None


def misfit(needs: Needs, servers: int, free: FreeMemory) -> str | None:
    """Why it cannot be loaded on so many servers of this machine; None too where that cannot be told."""
    if needs.gpus:
        return _gpus_misfit(needs, servers, free.gpus_bytes)
    needed_bytes = needs.total_bytes * servers
    if free.host_bytes is None or needed_bytes <= free.host_bytes:
        return None
    needs_text, has = f"{needed_bytes / _GIB:.1f} GiB", f"{free.host_bytes / _GIB:.1f} GiB"
    return f"it needs {needs_text} of memory{_on(servers)}; {has} are free: unload another release first"


def _gpus_misfit(needs: Needs, servers: int, gpus_bytes: tuple[int, ...] | None) -> str | None:
    each_bytes = needs.total_bytes // needs.gpus
    if gpus_bytes is None or not each_bytes or fitting(gpus_bytes, each_bytes, needs.gpus) >= servers:
        return None
    places = f"each of {needs.gpus} GPUs" if needs.gpus > 1 else "a GPU"
    free = ", ".join(f"{each / _GIB:.1f}" for each in gpus_bytes) or "0"
    return (
        f"it needs {each_bytes / _GIB:.1f} GiB of {places}{_on(servers)}; free on the GPUs of this machine: "
        f"{free} GiB. Unload another release first"
    )


def fitting(gpus_bytes: Sequence[int], each_bytes: int, size: int) -> int:
    """How many replicas fit that take so much of each of `size` different GPUs.

    A GPU takes part in as many as it has room for, but in each only once: so many fit as there is room for
    `size` times their number, where none counts for more than that number.
    """
    rooms = [free // each_bytes for free in gpus_bytes]
    count = sum(rooms) // size
    while count and sum(min(room, count) for room in rooms) < count * size:
        count -= 1
    return count


def _on(servers: int) -> str:
    return f" on {servers} servers" if servers > 1 else ""
