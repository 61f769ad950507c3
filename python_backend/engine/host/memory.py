"""How much memory this process occupies."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int:
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")
