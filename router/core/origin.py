"""What an answer has by chance or from the clock: where it may have to be made again, both are given."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Origin:
    """The beginning of one answer: made again from it, the answer has the same seed, ids and date."""

    def __init__(self, seed: int, began_s: float) -> None:
        self.began_s = began_s
        self.chance = random.Random(seed)


_origin: ContextVar[Origin | None] = ContextVar("origin", default=None)


@contextmanager
def originating(origin: Origin) -> Iterator[None]:
    """For what is called, and for the tasks that are made, inside."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


def random_bits(count: int) -> int:
    origin = _origin.get()
    return secrets.randbits(count) if origin is None else origin.chance.getrandbits(count)


def random_hex(size_bytes: int) -> str:
    origin = _origin.get()
    return secrets.token_hex(size_bytes) if origin is None else origin.chance.randbytes(size_bytes).hex()


def now_s() -> float:
    """When the answer was begun."""
    origin = _origin.get()
    return time.time() if origin is None else origin.began_s
