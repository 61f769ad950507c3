"""A round that fails is told, and the next one comes."""

from __future__ import annotations

import asyncio

import pytest

from router.core.rounds import every
from tests.waiting import soon


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_one_round_raises_does_not_keep_the_next_from_coming(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rounds, third = 0, asyncio.Event()

    def look() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            third.set()
        if rounds == 1:
            raise ValueError("not today")

    async def look_slowly() -> None:
        await asyncio.sleep(0)
        look()

    running = asyncio.ensure_future(every(0.001, look_slowly if is_async else look, "nothing was seen"))
    await soon(third.wait())
    running.cancel()
    assert "nothing was seen" in caplog.text
    assert "not today" in caplog.text
