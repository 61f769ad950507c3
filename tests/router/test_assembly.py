from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from router import assembly


async def test_a_loop_that_lost_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "_CANCELLED_AGAIN_S", 0.01)
    lost = 0

    async def loop() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if lost == 2:
                    raise
                lost += 1

    async with AsyncExitStack() as closing:
        assembly.run_until_closed(closing, loop())
        await asyncio.sleep(0)
    assert lost == 2
