"""One directory per running stack, and the cleaning up after stacks whose launcher was killed."""

from __future__ import annotations

import fcntl
import re
import secrets
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.stack.processes import end_all, marked_processes
from router.store.private_directory import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

SHARED_MEMORY_DIR = Path("/dev/shm")
SHARED_MEMORY_PREFIX = "triton_python_backend_shm_region_"
OWNER_LOCK = "owner.lock"
KEPT_LOGS = 5
SOCKETS = "sockets"
# The kernel takes 107 bytes with a name behind them, and gRPC reads the address as a URI.
FITS_A_SOCKET = re.compile(r"[A-Za-z0-9/._-]{1,90}")


@dataclass(frozen=True)
class Run:
    stack_id: str
    directory: Path

    def shared_memory_prefix(self, triton: int) -> str:
        """How the names of the regions of one of its Triton servers begin."""
        return f"{SHARED_MEMORY_PREFIX}{self.stack_id}_{triton}_"

    def socket_directory(self) -> Path:
        """Its own directory if a socket's address can name it, else a short one elsewhere."""
        if FITS_A_SOCKET.fullmatch(str(self.directory)):
            return self.directory
        link = self.directory / SOCKETS
        if not link.is_symlink():
            link.symlink_to(tempfile.mkdtemp(prefix="inflight-"))
        return link.readlink()

    def remove_shared_memory(self, triton: int | None = None) -> None:
        """Triton leaves one region per killed stub or server. Only when that server, or each one, is dead."""
        prefix = f"{SHARED_MEMORY_PREFIX}{self.stack_id}_"
        if triton is not None:
            prefix = self.shared_memory_prefix(triton)
        for region in SHARED_MEMORY_DIR.glob(f"{prefix}*"):
            region.unlink(missing_ok=True)

    def retire(self) -> None:
        """Remove all traces of a stack that has ended, except its logs."""
        end_all(marked_processes(self.stack_id))
        self.remove_shared_memory()
        for path in self.directory.iterdir():
            if path.name == SOCKETS:
                shutil.rmtree(path.readlink(), ignore_errors=True)
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix != ".log":
                path.unlink(missing_ok=True)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()


@contextmanager
def open_run(data_dir: Path) -> Iterator[Run]:
    """A new run; whatever dead runs of the same data directory left is removed first, and ours at the end.

    A live launcher holds a lock on its run. The kernel drops it however the launcher ends, so that, unlike a
    recorded process id, it can neither be forgotten nor be mistaken for another process's.
    """
    runs_dir = data_dir / "run"
    make_private(data_dir)
    runs_dir.mkdir(mode=0o700, exist_ok=True)
    with (runs_dir / ".lock").open("w") as all_runs:
        fcntl.flock(all_runs, fcntl.LOCK_EX)
        retire_dead_runs(runs_dir)
        run = new_run(runs_dir)
        owner = lock_owner(run.directory)
        assert owner is not None
    with owner:
        try:
            yield run
        finally:
            run.retire()


def new_run(runs_dir: Path) -> Run:
    stack_id = secrets.token_hex(4)
    directory = runs_dir / stack_id
    directory.mkdir(mode=0o700)
    return Run(stack_id, directory)


def retire_dead_runs(runs_dir: Path) -> None:
    ended: list[tuple[float, Path]] = []
    for directory in (path for path in runs_dir.iterdir() if path.is_dir()):
        ended_at = directory.stat().st_mtime
        if (directory / OWNER_LOCK).exists():
            owner = lock_owner(directory)
            if owner is None:
                continue  # its launcher lives
            with owner:
                Run(directory.name, directory).retire()
        ended.append((ended_at, directory))
    for _, directory in sorted(ended)[:-KEPT_LOGS]:
        shutil.rmtree(directory, ignore_errors=True)


def lock_owner(directory: Path) -> IO[str] | None:
    """Take the run's lock, or None when a live launcher holds it."""
    lock = (directory / OWNER_LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock
