"""The processes of a stack: tied to the launcher, watched, ended, and hunted down when they linger."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

from launcher.tether import tethered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STACK_ID_VARIABLE = "INFLIGHT_STACK_ID"
PR_SET_CHILD_SUBREAPER = 36
LINGER_S = 2.0
CRASHES = frozenset(-each for each in (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV))


class ChildProcess:
    """One supervised program; its output is appended to a log file over all its lives."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log_path: Path) -> None:
        self.log_path = log_path
        self.started_at_s = 0.0
        self._command = command
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self._log_offset = log.tell()
            self._spawn(log)

    def _spawn(self, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
        # Its own session: Ctrl-C in the terminal must reach the launcher alone, which stops things in order.
        self._process = subprocess.Popen(
            tethered(self._command),
            env=self._environment,
            cwd=self.log_path.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.started_at_s = time.monotonic()
        return self._process

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def crashed(self) -> bool:
        """Ended by itself in a way that no program means to end."""
        return self._process is not None and self._process.returncode in CRASHES

    @property
    def exit_description(self) -> str:
        code = self._process.returncode if self._process else None
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def terminate(self) -> None:
        if self.running and self._process:
            self._process.terminate()

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    @property
    def where_logged(self) -> str:
        return f"its log is {self.log_path}"

    def log_lines(self) -> list[str]:
        """What the present or latest life has written."""
        with suppress(OSError), self.log_path.open("rb") as log:
            log.seek(self._log_offset)
            return log.read().decode("utf-8", errors="replace").splitlines()
        return []


def become_subreaper() -> None:
    """Adopt processes whose parent dies (a killed tritonserver's stubs), so that they can be ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_adopted(own: Iterable[ChildProcess]) -> None:
    """Collect dead processes that were adopted; the stack's own children are left to their ChildProcess."""
    own_pids = {child.pid for child in own}
    with suppress(ChildProcessError):
        while status := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if status.si_pid in own_pids:
                return
            os.waitpid(status.si_pid, 0)


def descendants(spare: Iterable[ChildProcess] = ()) -> list[psutil.Process]:
    """All processes below this one, except those to spare and what is below them."""
    found = psutil.Process().children(recursive=True)
    kept: set[psutil.Process] = set()
    for child in spare:
        if child.running:
            with suppress(psutil.NoSuchProcess):
                spared = psutil.Process(child.pid)
                kept |= {spared, *spared.children(recursive=True)}
    return [process for process in found if process not in kept]


def marked_processes(stack_id: str) -> list[psutil.Process]:
    """Processes of a stack wherever they hang in the process tree: each inherits the stack's id."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(STACK_ID_VARIABLE) == stack_id:
                found.append(process)
    return found


def end_all(processes: list[psutil.Process], linger_s: float = LINGER_S) -> None:
    """Ask them to go, wait a little (they may be cleaning up after their parent), then kill what is left."""
    if not processes:
        return
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=linger_s)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=LINGER_S)
