from __future__ import annotations

import os
import subprocess
import sys

from python_backend.host.priorities import NICENESS, give_way

WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def test_a_process_gives_way_to_others() -> None:
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as child:
        give_way(child.pid)
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == NICENESS
        assert os.sched_getscheduler(child.pid) == os.SCHED_BATCH
        child.communicate()
    assert os.getpriority(os.PRIO_PROCESS, 0) < NICENESS


def test_a_process_that_has_ended_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        give_way(child.pid)
