"""Threads that meet inside compiled code: nobody runs ahead, and each piece of work is done once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from numba.core.errors import TypingError

from python_backend.engine.native.threads import FIRST_FREE, Team
from tests.engine.native.kernels import meet_often, run_on, say_number, take_all
from tests.pace import patience

TEAMS = range(1, 5)


@pytest.fixture(params=TEAMS)
def team(request: pytest.FixtureRequest) -> Team:
    return Team(request.param)


def test_no_thread_leaves_a_barrier_before_all_have_come(team: Team) -> None:
    seen, counters = np.zeros(team.threads + 1, np.int64), np.zeros(FIRST_FREE, np.int64)
    for _ in range(3):  # the counter of meetings is never set back
        run_on(team, meet_often, team.threads, 300, seen, counters)
        assert seen[team.threads] == 0
    team.close()


def test_a_thread_that_waits_long_for_another_sleeps() -> None:
    used_s = 0.0
    seen, counters = np.zeros(3, np.int64), np.zeros(FIRST_FREE, np.int64)
    meet_often(0, 1, 1, seen, counters)  # compiled

    def work() -> None:
        nonlocal used_s
        began_s = time.thread_time()
        meet_often(0, 2, 1, seen, counters)
        used_s = time.thread_time() - began_s

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    meet_often(1, 2, 1, seen, counters)
    thread.join()
    assert used_s < 0.25


def test_a_team_without_work_sleeps() -> None:
    team, numbers = Team(3), np.zeros(3, np.int64)
    run_on(team, say_number, 3, numbers, np.zeros(FIRST_FREE, np.int64))
    began_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - began_s < 0.1
    team.close()


def test_every_number_is_handed_out_once(team: Team) -> None:
    taken, counters = np.zeros(20_000, np.int64), np.zeros(FIRST_FREE + 1, np.int64)
    run_on(team, take_all, team.threads, taken, counters)
    assert (taken == 1).all()
    team.close()


def test_work_is_called_with_every_threads_number_each_time(team: Team) -> None:
    counters = np.zeros(FIRST_FREE, np.int64)
    for _ in range(200):
        numbers = np.zeros(team.threads, np.int64)
        run_on(team, say_number, team.threads, numbers, counters)
        assert list(numbers) == list(range(1, team.threads + 1))
    team.close()


def test_a_closed_team_has_no_threads_left() -> None:
    before = set(threading.enumerate())
    team = Team(3)
    mine = set(threading.enumerate()) - before
    assert len(mine) == 2
    team.close()
    for thread in mine:
        thread.join(timeout=patience(10))
    assert not any(thread.is_alive() for thread in mine)


def test_a_thread_that_fails_ends_the_process_because_the_others_would_wait_for_ever() -> None:
    script = (
        "import time\n"
        "from python_backend.engine.native import threads\n"
        "def fail(number, team):\n"
        "    raise RuntimeError('no luck')\n"
        "threads._follow = fail\n"
        "threads.Team(2)\n"
        "time.sleep(100)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert ended.returncode == 1
    assert "thread 1 of the kernels failed" in ended.stderr
    assert "no luck" in ended.stderr


def test_what_compiled_code_cannot_be_told_is_refused_before_any_thread_begins(team: Team) -> None:
    with pytest.raises(TypingError):
        team.run(0, (object(),))
    numbers = np.zeros(team.threads, np.int64)
    run_on(team, say_number, team.threads, numbers, np.zeros(FIRST_FREE, np.int64))
    assert numbers.all()
    team.close()
