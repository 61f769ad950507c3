"""Which GPU each of several Triton servers gets."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICE_FILE = re.compile(r"nvidia\d+")


def share_of_gpus(
    number: int, base: Mapping[str, str], devices: Path = Path("/dev"), size: int = 1
) -> dict[str, str]:
    """What to add to the environment of a server: one group of `size` GPUs after another, and round again.

    Nothing where there is one group or none. Engines count what they see from 0.
    """
    gpus = visible_gpus(base, devices)
    groups = [gpus[begin : begin + size] for begin in range(0, len(gpus) - size + 1, size)]
    return {VISIBLE: ",".join(groups[number % len(groups)])} if len(groups) > 1 else {}


def gpus_of_one(engine: Mapping[str, str]) -> int:
    """How many an engine with these parameters computes on."""
    return prod(int(engine.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline", "data"))


def visible_gpus(base: Mapping[str, str], devices: Path) -> list[str]:
    if VISIBLE in base:
        return [gpu.strip() for gpu in base[VISIBLE].split(",") if gpu.strip()]
    count = sum(1 for entry in devices.iterdir() if DEVICE_FILE.fullmatch(entry.name))
    return [str(number) for number in range(count)]
