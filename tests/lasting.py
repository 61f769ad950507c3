"""What many tests share and none after them needs: it ends when its worker goes on to other work."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
    """All at once, for a stack that stops mostly waits; what has ended does not end again."""
    if not _open:
        return
    with ThreadPoolExecutor(len(_open)) as threads:
        ending = [threads.submit(each.close) for each in _open]
    _open.clear()
    for each in ending:
        each.result()
