from __future__ import annotations

import asyncio
import threading
import time

import pytest

from router.telemetry.loop_watch import LoopWatch
from router.telemetry.values import Observations
from tests.waiting import until

BOUNDS = (0.15,)


async def observed(stalls: Observations, count: int) -> None:
    await until(lambda: sum(stalls.counts) >= count)


def hold_up_everybody(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_loop_that_is_held_up_is_seen_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    stalls = Observations(BOUNDS)
    watch = LoopWatch(stalls, every_s=0.01, too_long_s=0.1)
    watch.start()
    await observed(stalls, 3)
    hold_up_everybody(0.4)
    await observed(stalls, sum(stalls.counts) + 2)
    watch.stop()
    assert stalls.counts[1] >= 1
    assert "hold_up_everybody" in caplog.text


async def test_a_stopped_watch_observes_nothing_more() -> None:
    stalls = Observations(BOUNDS)
    watch = LoopWatch(stalls, every_s=0.01)
    watch.start()
    await observed(stalls, 1)
    watch.stop()
    await until(lambda: not any(each.name == "loop-watch" for each in threading.enumerate()))
    seen = sum(stalls.counts)
    await asyncio.sleep(0.05)
    assert sum(stalls.counts) == seen
