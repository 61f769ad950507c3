"""Threads that meet inside compiled code: nobody runs ahead, and each piece of work is done once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from python_backend.engine.native.threads import FIRST_FREE, Team
from tests.engine.native.kernels import meet_often, take_all

TEAMS = range(1, 5)


@pytest.fixture(params=TEAMS)
def team(request: pytest.FixtureRequest) -> Team:
    return Team(request.param)


def test_no_thread_leaves_a_barrier_before_all_have_come(team: Team) -> None:
    seen, counters = np.zeros(team.threads + 1, np.int64), np.zeros(FIRST_FREE, np.int64)
    for _ in range(3):  # the counter of meetings is never set back
        team.run(meet_often, team.threads, 300, seen, counters)
        assert seen[team.threads] == 0
    team.close()


def test_a_thread_that_waits_long_for_another_sleeps() -> None:
    team, used_s = Team(2), 0.0
    seen, counters = np.zeros(3, np.int64), np.zeros(FIRST_FREE, np.int64)
    meet_often(0, 1, 1, seen, counters)  # compiled

    def work(number: int) -> None:
        nonlocal used_s
        if number == 1:
            time.sleep(0.5)
        began_s = time.thread_time()
        meet_often(number, 2, 1, seen, counters)
        used_s += time.thread_time() - began_s

    team.run(work)
    team.close()
    assert used_s < 0.25


def test_every_number_is_handed_out_once(team: Team) -> None:
    taken, counters = np.zeros(20_000, np.int64), np.zeros(FIRST_FREE + 1, np.int64)
    team.run(take_all, team.threads, taken, counters)
    assert (taken == 1).all()
    team.close()


def test_work_is_called_with_every_threads_number() -> None:
    team, arrived = Team(3), threading.Barrier(3, timeout=10)
    numbers: list[tuple[int, str]] = []

    def work(number: int, word: str) -> None:
        numbers.append((number, word))
        arrived.wait()

    team.run(work, "word")
    assert sorted(numbers) == [(0, "word"), (1, "word"), (2, "word")]
    team.close()


def test_a_closed_team_has_no_threads_left() -> None:
    before = set(threading.enumerate())
    team = Team(3)
    mine = set(threading.enumerate()) - before
    assert len(mine) == 2
    team.close()
    for thread in mine:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in mine)


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_thread_that_fails_ends_the_process_because_the_others_would_wait_for_ever(culprit: int) -> None:
    script = (
        "import time\n"
        "from python_backend.engine.native.threads import Team\n"
        "def work(number):\n"
        f"    if number == {culprit}:\n"
        "        raise RuntimeError('no luck')\n"
        "    time.sleep(100)\n"
        "Team(2).run(work)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert f"thread {culprit} of the kernels failed" in ended.stderr
    assert "no luck" in ended.stderr


def test_a_team_of_one_may_fail_because_no_thread_waits_for_it() -> None:
    def work(number: int) -> None:
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        Team(1).run(work)
