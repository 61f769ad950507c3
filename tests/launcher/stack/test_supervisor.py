"""Starting again what died, giving up on what does not stay up."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from launcher.console import StackConsole
from launcher.failure import ProcessFailed
from launcher.stack.processes import ChildProcess
from launcher.stack.restart_policy import RestartPolicy
from launcher.stack.supervisor import Service, Supervisor
from tests.waiting import wait_until

DIES = "import sys; print('out of cheese'); sys.exit(3)"
LIVES = "import time; time.sleep(60)"
CRASHES = "import os; print('terminate called'); os.abort()"
CRASHES_ONCE = """
import os, pathlib, time
marker = pathlib.Path("crashed")
if marker.exists():
    time.sleep(60)
marker.touch()
os.abort()
"""


def service(tmp_path: Path, program: str, chances: int = 2) -> Service:
    child = ChildProcess([sys.executable, "-c", program], {}, tmp_path / "child.log")
    policy = RestartPolicy(chances=chances)
    return Service(
        "the child", child, lambda: True, start_timeout_s=300, longest_stop_s=lambda: 300, policy=policy
    )


def supervisor() -> tuple[Supervisor, StringIO]:
    output = StringIO()
    console = Console(file=output, highlight=False, width=200)
    return Supervisor(StackConsole(console, console)), output


def tick_until(supervisor: Supervisor, condition: Callable[[], bool]) -> None:
    def has_come() -> bool:
        supervisor.tick()
        return condition()

    wait_until(has_come)


def wait_for_end(service: Service) -> None:
    wait_until(lambda: not service.child.running)


def test_a_service_that_dies_before_it_was_ready_fails_the_start_with_its_log(tmp_path: Path) -> None:
    keeper, _ = supervisor()
    child = service(tmp_path, DIES)
    child.is_ready = lambda: False
    keeper.start(child)
    wait_for_end(child)
    with pytest.raises(ProcessFailed, match=r"The child did not start \(exit code 3\)") as failure:
        keeper.has_come_up(child)
    assert failure.value.lines == ["out of cheese"]


def test_a_service_that_crashes_as_it_starts_is_tried_once_more(tmp_path: Path) -> None:
    keeper, output = supervisor()
    child = service(tmp_path, CRASHES_ONCE)
    cleaned_up = []
    child.clean_up_after = lambda: cleaned_up.append(child.child.running)
    keeper.start(child)
    wait_for_end(child)
    child.ready = True  # one of several, that crashes while another starts
    other = service(tmp_path, LIVES)
    keeper.start(other)
    assert keeper.has_come_up(other)
    assert not child.ready
    assert keeper.has_come_up(child)
    other.child.kill()
    assert cleaned_up == [False]
    assert "The child crashed as it started (killed by SIGABRT); trying once more." in output.getvalue()
    child.child.kill()


def test_a_service_that_crashes_at_both_starts_fails_with_its_log(tmp_path: Path) -> None:
    keeper, _ = supervisor()
    child = service(tmp_path, CRASHES)
    child.is_ready = lambda: False
    keeper.start(child)
    wait_for_end(child)
    assert not keeper.has_come_up(child)
    wait_for_end(child)
    with pytest.raises(ProcessFailed, match=r"The child did not start \(killed by SIGABRT\)"):
        keeper.has_come_up(child)


def test_a_killed_service_is_restarted_and_both_are_reported(tmp_path: Path) -> None:
    keeper, output = supervisor()
    child = service(tmp_path, LIVES)
    keeper.start(child)
    assert keeper.has_come_up(child)
    first_pid = child.child.pid
    child.child.kill()
    tick_until(keeper, lambda: child.ready is False)
    told = r"The child died \(killed by SIGKILL\) after \d+ s; starting it again in 0\.5 s\."
    assert re.search(told, output.getvalue())
    tick_until(keeper, lambda: child.ready is True)
    assert child.child.pid != first_pid
    assert "The child is back." in output.getvalue()
    child.child.kill()


def test_a_service_that_is_alive_but_broken_is_restarted(tmp_path: Path) -> None:
    keeper, output = supervisor()
    child = service(tmp_path, LIVES)
    child.find_fault = lambda now_s: "it only stares"
    keeper.start(child)
    assert keeper.has_come_up(child)
    tick_until(keeper, lambda: child.ready is False)
    assert "The child is broken (it only stares)" in output.getvalue()
    assert not child.child.running


def test_a_service_that_does_not_stay_up_is_given_up(tmp_path: Path) -> None:
    keeper, _ = supervisor()
    child = service(tmp_path, DIES, chances=1)
    child.is_ready = lambda: False
    keeper.start(child)
    with pytest.raises(ProcessFailed, match=r"keeps failing: giving up; its log is .*child\.log") as failed:
        tick_until(keeper, lambda: child.ready is True)
    assert failed.value.lines == ["out of cheese"]


def test_a_service_that_hangs_on_restart_is_killed_and_finally_given_up(tmp_path: Path) -> None:
    keeper, output = supervisor()
    child = service(tmp_path, LIVES, chances=2)
    keeper.start(child)
    assert keeper.has_come_up(child)
    child.is_ready = lambda: False
    child.start_timeout_s = 0.1
    child.policy.quick_death_s = 0.05  # even one that loads for long must not be tried for ever
    child.child.kill()
    tick_until(keeper, lambda: child.ready is False)
    with pytest.raises(ProcessFailed, match="was not ready in time and keeps failing: giving up"):
        tick_until(keeper, lambda: child.ready is True)
    assert re.search(r"The child was not ready in time after \d+ s; starting it again in", output.getvalue())
    assert not child.child.running


def test_a_service_that_does_not_stay_up_is_retried_while_a_peer_serves(
    tmp_path: Path,
) -> None:
    keeper, output = supervisor()
    child, peer = service(tmp_path, DIES, chances=1), service(tmp_path, LIVES)
    child.peers, peer.ready = [peer], True
    child.is_ready = lambda: False
    keeper.start(child)
    tick_until(keeper, lambda: "starting it again in 30 s." in output.getvalue())
