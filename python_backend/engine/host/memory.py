"""How much memory this process occupies, and how much the machine has left."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int:
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """What can be had without pushing others out, as the kernel estimates it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
