"""A router or stub in a process of its own, pinned to a core, and what it costs."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

ROUTER_CORE = 0
LOAD_CORE = 1
_STOP_LIMIT_S = 10.0


class Costs:
    """Processor time and memory of a process and all it has started."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)

    def _tree(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def cpu_s(self) -> float:
        times = [process.cpu_times() for process in self._tree()]
        return sum(time.user + time.system for time in times)

    def rss_bytes(self) -> int:
        return sum(process.memory_info().rss for process in self._tree())


@contextmanager
def running(
    command: Sequence[str],
    core: int,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = _start(command, core, output, env, cwd)
        try:
            yield process
        finally:
            _stop(process)


def _start(
    command: Sequence[str], core: int, output: IO[bytes], env: Mapping[str, str] | None, cwd: Path | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    tree = []
    with suppress(psutil.NoSuchProcess):
        tree = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in tree:
        with suppress(psutil.NoSuchProcess):
            child.kill()
