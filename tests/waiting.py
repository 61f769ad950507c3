"""Waiting in tests for what is about to happen, on a machine of any pace."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.pace import is_over, patience

# What tests wait for takes a small part of this on an idle machine. It ends a wait for what never comes.
LIMIT_S = 30.0

T = TypeVar("T")


def wait_until(
    condition: Callable[[], object],
    what: object = "it did not happen in time",
    limit_s: float = LIMIT_S,
) -> None:
    """Block until the condition is true. `what` is said if it never is; a function is called for it then."""
    began_s = time.monotonic()
    while not condition():
        assert not is_over(began_s, limit_s), what() if callable(what) else what
        time.sleep(_pause_s(began_s))


async def until(
    condition: Callable[[], object],
    what: object = "it did not happen in time",
    limit_s: float = LIMIT_S,
) -> None:
    """Wait like `wait_until` while this event loop goes on. The condition may be a coroutine function."""
    began_s = time.monotonic()
    while not await _value_of(condition):
        assert not is_over(began_s, limit_s), what() if callable(what) else what
        await asyncio.sleep(_pause_s(began_s))


def _pause_s(began_s: float) -> float:
    """Return the time until the next look: what lasts longer is looked at less often, for looking is work."""
    return min(max(0.005, (time.monotonic() - began_s) / 10), 0.25)


async def _value_of(condition: Callable[[], object]) -> object:
    value = condition()
    return await value if inspect.isawaitable(value) else value


async def soon(awaited: Awaitable[T], limit_s: float = LIMIT_S) -> T:
    """Return the result of what should end shortly; a TimeoutError says that it did not."""
    return await asyncio.wait_for(awaited, patience(limit_s))
