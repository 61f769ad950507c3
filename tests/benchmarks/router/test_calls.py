"""Calls are counted by file and function, and held against the goals."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Generator

from rich.console import Console

from benchmarks.router import calls
from benchmarks.router.calls import LATER, REQUEST, Part, Recorder, report


class Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


async def talk(times: int) -> None:
    for _ in range(times):
        await Pause()


def recorded(recorder: Recorder, times: int) -> None:
    coroutine = talk(times)
    sys.setprofile(recorder.event)
    try:
        for _ in range(times):
            coroutine.send(None)
    finally:
        sys.setprofile(None)
    coroutine.close()


def test_a_coroutine_that_goes_on_is_told_from_one_that_begins() -> None:
    recorder = Recorder()
    recorded(recorder, 3)
    counted = {name: count for (_, name), count in recorder.parts[0].libraries.items()}
    assert counted["talk"] == 1
    assert counted["talk (resumed)"] == 2
    assert recorder.parts[0].calls == 0


def test_a_pause_begins_a_new_part() -> None:
    recorder = Recorder()
    for _ in range(3):
        recorded(recorder, 1)
        time.sleep(2 * calls._PAUSE_S)
    assert [part.timer for part in recorder.parts] == [True, True, True]


def test_a_goal_that_is_missed_is_said() -> None:
    met, missed = Part(timer=False), Part(timer=False)
    met.ours["router/a.py", "f"] = 25
    missed.ours["router/a.py", "f"] = 131
    out = io.StringIO()
    assert report(Console(file=out, width=150), {REQUEST: met, LATER: met})
    assert not report(Console(file=out, width=150), {REQUEST: missed, LATER: met})
    assert "130 MISSED" in out.getvalue()
