"""Work that gives way: what tenants have done beside their answers takes little of what a step needs.

A weight alone is not enough. Linux lets a process that runs finish its slice, often to the next tick, before
it looks who else wants to run; so does one of low weight, and a step waits for it each time that it begins.
Since 6.12 whoever wakes goes first if its slice is shorter than that of the one that runs, whatever their
weights; before 6.6 it mostly did anyway.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from contextlib import suppress

# Beside one busy thread of the usual priority: a tenth of its core.
NICENESS = 10
_SLICE_NS = 5_000_000  # of those who ask for none it is between 0.7 and 2.8 ms
# struct sched_attr: size, policy, flags, niceness, priority, three times (the first is the slice).
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


def give_way(pid: int) -> None:
    """For a process, or one thread by its number, and what it starts; as far as this system can."""
    niceness = NICENESS
    with suppress(OSError):
        niceness = max(niceness, os.getpriority(os.PRIO_PROCESS, pid))
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    if (number := _SCHED_SETATTR.get(platform.machine())) is not None:
        asked = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_BATCH, 0, niceness, 0, _SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(number, pid, asked, 0)
