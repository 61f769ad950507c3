"""What many tests share and none after them needs: it ends when its worker goes on to other work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

Opened = TypeVar("Opened")
_open: list[ExitStack] = []


@contextmanager
def lasting(opened: AbstractContextManager[Opened]) -> Iterator[Opened]:
    """For fixtures of the whole session that cost something for as long as they are there."""
    with ExitStack() as closing:
        value = closing.enter_context(opened)
        _open.append(closing)
        yield value


def end_all() -> None:
    """Those opened last first; what has ended does not end again."""
    while _open:
        _open.pop().close()
