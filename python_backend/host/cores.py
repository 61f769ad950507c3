"""How many cores this process may use: those it may run on, or fewer where its container has a quota.

Servers that share a machine have an equal part each: threads of engines that wait for one another on the same
cores take far longer than fewer threads.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
SERVERS_HERE = "INFLIGHT_SERVERS_HERE"  # what tells a server with how many it shares the machine


def available_cores() -> int:
    cores = min(len(os.sched_getaffinity(0)), _quota_cores() or os.cpu_count() or 1)
    return max(1, cores // int(os.environ.get(SERVERS_HERE, "1")))


def _quota_cores() -> int | None:
    """What the container may use, by version 2 of cgroups or by version 1; None: all there is."""
    texts = [
        _text("cpu.max"),
        f"{_text('cpu/cpu.cfs_quota_us')} {_text('cpu/cpu.cfs_period_us')}",
    ]
    return min((cores for cores in map(cores_in_quota, texts) if cores is not None), default=None)


def cores_in_quota(text: str) -> int | None:
    """Cores in "QUOTA PERIOD" (both in µs), rounded up; None for "max" and for what is no quota."""
    try:
        quota_us, period_us = map(int, text.split())
    except ValueError:
        return None
    return -(-quota_us // period_us) if quota_us > 0 and period_us > 0 else None


def _text(name: str) -> str:
    try:
        return (_CGROUPS / name).read_text()
    except OSError:
        return ""


def processor() -> str:
    """What kind of processor this is, as it calls itself."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU part")):
                return f"{platform.machine()} {line.partition(':')[2].strip()}"
    return platform.machine()
