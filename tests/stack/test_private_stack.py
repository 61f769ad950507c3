"""What other users of the machine find of a running stack: nothing to read, and no way into Triton."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.stack import RunningStack
from launcher.stack.runs import SHARED_MEMORY_DIR, SHARED_MEMORY_PREFIX
from tests.pace import patience

pytestmark = pytest.mark.stack

NOBODY = 65534


def sockets(stack: RunningStack) -> list[Path]:
    return [Path(url.removeprefix("unix:")) for url in stack.triton_grpc_urls]


def processes(stack: RunningStack) -> list[psutil.Process]:
    launcher = psutil.Process(stack.process.pid)
    return [launcher, *launcher.children(recursive=True)]


def made_by(stack: RunningStack) -> Iterator[Path]:
    run = stack.logs
    regions = SHARED_MEMORY_DIR.glob(f"{SHARED_MEMORY_PREFIX}{run.name}_*")
    roots = [run, stack.state_dir, *(path.parent for path in sockets(stack)), *regions]
    for root in roots:
        yield root
        yield from root.rglob("*")


def mode_of(path: Path) -> int:
    """None of what was removed meanwhile."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def test_nothing_that_a_stack_creates_is_for_anybody_else(stack: RunningStack, data_dir: Path) -> None:
    asked = {"model": stack.model, "input": "Hello", "max_output_tokens": 4}
    answer = httpx.post(f"{stack.url}/v1/responses", json=asked, timeout=patience(60))
    assert answer.status_code == 200  # and is stored
    made = [path for path in made_by(stack) if not path.is_symlink()]
    assert {"store.db", "router.toml", "triton.log", "router.log", "owner.lock"} <= {
        path.name for path in made
    }
    assert any(path.parent == SHARED_MEMORY_DIR for path in made)
    assert any(path.is_socket() for path in made)
    assert not [path for path in made if mode_of(path) & 0o077]
    assert data_dir.stat().st_mode & 0o077 == 0


def test_triton_listens_on_a_socket_of_its_user_and_shows_its_metrics_alone(stack: RunningStack) -> None:
    (triton,) = [process for process in processes(stack) if process.name() == "tritonserver"]
    listening = {each.laddr.port for each in triton.net_connections("tcp") if each.status == "LISTEN"}
    assert listening == {int(re.findall(r":(\d+)/", stack.triton_metrics_url)[0])}
    for path in sockets(stack):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_command_lines_hold_no_secret(stack: RunningStack) -> None:
    """Anybody can read them."""
    words = ""
    for process in processes(stack):
        with suppress(psutil.NoSuchProcess):  # those that ended meanwhile
            words += " ".join(["", *process.cmdline()])
    assert "restricted" not in words
    assert not re.search(r"(?i)(secret|password|token|key)\S*=[^/\s]", words)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_cannot_reach_tritons_socket(stack: RunningStack) -> None:
    (path,) = sockets(stack)
    for look in ('test -e "$1"', 'ls "$(dirname "$1")"'):
        ran = subprocess.run(
            ["/bin/sh", "-c", look, "sh", path], user=NOBODY, group=NOBODY, extra_groups=[], check=False
        )
        assert ran.returncode != 0
