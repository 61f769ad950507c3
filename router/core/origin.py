"""What an answer has by chance: where it may have to be made again, that is given."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_chance: ContextVar[random.Random | None] = ContextVar("chance", default=None)


@contextmanager
def originating(seed: int) -> Iterator[None]:
    """What is called inside, and in tasks made there, has the same ids each time that it is called."""
    token = _chance.set(random.Random(seed))
    try:
        yield
    finally:
        _chance.reset(token)


def random_hex(size_bytes: int) -> str:
    chance = _chance.get()
    return secrets.token_hex(size_bytes) if chance is None else chance.randbytes(size_bytes).hex()
