"""Finds out the facts of this machine; starts nothing, and changes nothing."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from launcher.commands.doctor.machine import MachineFacts
from launcher.paths import PROJECT_ROOT
from launcher.stack.runs import OWNER_LOCK, SHARED_MEMORY_DIR, lock_owner

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMEX_BYTES = 512  # more than any kernel's struct timex
_UNKEPT = 5  # TIME_ERROR
# The engine looks for itself: this package knows nothing of it, and torch must not be imported here.
_ENGINE_LOOKS = """
import json
from python_backend.engine.host.device import look, missing_for_cuda
seen = look()
print(json.dumps({
    "gpus": [gpu.name for gpu in seen.gpus],
    "missing": missing_for_cuda(seen),
    "torch": ".".join(map(str, seen.torch_version or ())),
}))
"""


def machine_facts(data_dir: Path) -> MachineFacts:
    return MachineFacts(
        python=sys.version_info[:2],
        system=sys.platform,
        machine=platform.machine(),
        glibc=platform.libc_ver()[1],
        wheel_tags=_wheel_tags("nvidia-pytriton"),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=_available_memory(),
        disk_free_bytes=shutil.disk_usage(existing_parent(data_dir)).free,
        shm_bytes=shutil.disk_usage(SHARED_MEMORY_DIR).total if SHARED_MEMORY_DIR.is_dir() else None,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        is_clock_kept=_is_clock_kept(),
    )


def engine_looks() -> dict[str, Any]:
    """What the engine sees of GPUs and of what it needs for them."""
    asked = subprocess.run(
        [sys.executable, "-c", _ENGINE_LOOKS], capture_output=True, text=True, check=False, cwd=PROJECT_ROOT
    )
    if asked.returncode != 0:
        last = asked.stderr.strip().splitlines()[-1:] or ["no answer"]
        return {"gpus": [], "missing": last[0], "torch": ""}
    seen: dict[str, Any] = json.loads(asked.stdout)
    return seen


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def existing_parent(path: Path) -> Path:
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def live_runs(data_dir: Path) -> list[str]:
    """The stacks that run with this data directory."""
    runs = data_dir / "run"
    found = []
    for directory in sorted(runs.iterdir()) if runs.is_dir() else ():
        if (directory / OWNER_LOCK).exists():
            try:
                lock = lock_owner(directory)
            except OSError:  # somebody else's
                continue
            if lock is None:
                found.append(directory.name)
            else:
                lock.close()
    return found


def ports_of_runs(data_dir: Path, runs: Iterable[str]) -> frozenset[int]:
    """Where the routers of these stacks listen."""
    found = set[int]()
    for name in runs:
        with suppress(OSError, tomllib.TOMLDecodeError):  # one that has only begun
            settings = tomllib.loads((data_dir / "run" / name / "router.toml").read_text())
            found |= {settings[each] for each in ("port", "grpc_port") if each in settings}
    return frozenset(found)


def _wheel_tags(package: str) -> str:
    try:
        return importlib.metadata.distribution(package).read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def _available_memory() -> int:
    """Of the machine, or of the container where that has less."""
    available = int(psutil.virtual_memory().available)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        return min(available, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # none, or "max"
        return available


def _is_clock_kept() -> bool | None:
    try:
        answer = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else bool(answer != _UNKEPT)
