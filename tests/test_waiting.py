from __future__ import annotations

import asyncio
import time

import pytest

from tests import pace
from tests.waiting import soon, until, wait_until


def test_a_wait_ends_once_its_condition_is_true() -> None:
    looks = iter([False, False, True])
    wait_until(lambda: next(looks))
    assert list(looks) == []


async def test_a_loop_goes_on_while_it_is_waited_in() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    await until(event.is_set)


async def test_a_condition_may_be_asked_for_elsewhere() -> None:
    looks = iter([0, 0, 1])

    async def ask() -> int:
        return next(looks)

    await until(ask)
    assert list(looks) == []


async def test_what_never_comes_is_told() -> None:
    with pytest.raises(AssertionError, match="the sky did not fall"):
        wait_until(lambda: False, "the sky did not fall", limit_s=0.0)
    with pytest.raises(AssertionError, match="it is still blue"):
        await until(lambda: False, lambda: "it is still blue", limit_s=0.0)
    with pytest.raises(asyncio.TimeoutError):
        await soon(asyncio.Event().wait(), limit_s=0.01)


def test_a_limit_is_longer_on_a_machine_that_has_become_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    began_s = time.monotonic() - 1e6
    assert pace.is_over(began_s, 1.0)
    monkeypatch.setattr(pace, "_measured", lambda: 1e9)
    assert not pace.is_over(began_s, 1.0)
