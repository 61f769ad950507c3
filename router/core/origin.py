"""What an answer has by chance: where it may have to be made again, that is given."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_chance: ContextVar[random.Random | None] = ContextVar("chance", default=None)
_take: ContextVar[int] = ContextVar("take", default=1)


@contextmanager
def originating(seed: int, take: int = 1) -> Iterator[None]:
    """What is called inside, and in tasks made there, has the same ids each time that it is called.

    `take` counts these times, over all routers.
    """
    chance, number = _chance.set(random.Random(seed)), _take.set(take)
    try:
        yield
    finally:
        _take.reset(number)
        _chance.reset(chance)


def current_take() -> int:
    return _take.get()


def random_hex(size_bytes: int) -> str:
    chance = _chance.get()
    return secrets.token_hex(size_bytes) if chance is None else chance.randbytes(size_bytes).hex()
