"""An engine that hangs is told from one that works for long, or waits for a processor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.process.stillness import (
    LOOK_PERIOD_S,
    PATIENCE_S,
    PUNCTUAL_S,
    QUIET_S,
    Marks,
    Stillness,
    thread_marks,
)

TICK_S = 0.1
FOUND_WITHIN_S = 5.0


class Threads:
    """Of a process: `runs` is how often they were run."""

    def __init__(self) -> None:
        self.runs = 0
        self.looks = 0

    def marks(self) -> Marks:
        self.looks += 1
        return {"1": str(self.runs)}


def when_found(stillness: Stillness, until_s: float, begin_s: float = 0.0) -> float | None:
    now_s = begin_s
    while now_s < until_s:
        if stillness.is_hung(now_s):
            return now_s - begin_s
        now_s += TICK_S
    return None


def test_a_process_whose_threads_do_not_run_is_found_within_five_seconds(
    figure: Callable[[str], None],
) -> None:
    found_s = when_found(Stillness(Threads().marks), 60)
    assert found_s is not None
    figure(f"found after {found_s:.1f} s")
    assert PATIENCE_S <= found_s < FOUND_WITHIN_S


@given(st.integers(1, int((PATIENCE_S - LOOK_PERIOD_S) / TICK_S)))
def test_a_process_that_runs_now_and_then_is_never_taken_for_one_that_hangs(ticks_between: int) -> None:
    threads = Threads()
    stillness = Stillness(threads.marks)
    for tick in range(600):
        threads.runs += tick % ticks_between == 0
        assert not stillness.is_hung(tick * TICK_S)


def test_one_that_is_heard_of_is_not_even_looked_at() -> None:
    threads = Threads()
    stillness = Stillness(threads.marks)
    for tick in range(600):
        assert not stillness.is_hung(tick * TICK_S)
        if tick % int(QUIET_S / TICK_S / 2) == 0:
            stillness.interrupt()
    assert not threads.looks


def test_who_was_away_itself_begins_to_watch_anew() -> None:
    """The whole machine was suspended: nothing ran, and nothing hangs."""
    stillness = Stillness(Threads().marks)
    assert when_found(stillness, PATIENCE_S) is None
    back_s = PATIENCE_S + PUNCTUAL_S + 60
    found_s = when_found(stillness, back_s + 60, back_s)
    assert found_s is not None
    assert found_s >= PATIENCE_S


def test_where_the_kernel_says_nothing_nobody_hangs() -> None:
    assert when_found(Stillness(dict), 60) is None


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with its children


@pytest.mark.skipif(not thread_marks(1), reason="this kernel does not say how often threads run")
def test_the_kernel_says_of_every_thread_and_child_whether_it_runs() -> None:
    child = "import time; print(flush=True)\nwhile True: time.sleep(0.001)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with running(program) as parent:
        marks = thread_marks(parent.pid)
        while thread_marks(parent.pid) == marks:
            pass  # the child runs, its parent does not
    with running("import signal; print(flush=True); signal.pause()") as process:
        process.send_signal(signal.SIGSTOP)
        before: Marks = {}
        while (now := thread_marks(process.pid)) != before:
            before = now
        assert now
