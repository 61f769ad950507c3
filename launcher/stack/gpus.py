"""Which GPU each of several Triton servers gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICE_FILE = re.compile(r"nvidia\d+")


def share_of_gpus(number: int, base: Mapping[str, str], devices: Path = Path("/dev")) -> dict[str, str]:
    """What to add to the environment of a server: one GPU after another, and round again.

    Nothing where there is one GPU or none. Engines count what they see from 0.
    """
    gpus = visible_gpus(base, devices)
    return {VISIBLE: gpus[number % len(gpus)]} if len(gpus) > 1 else {}


def visible_gpus(base: Mapping[str, str], devices: Path) -> list[str]:
    if VISIBLE in base:
        return [gpu.strip() for gpu in base[VISIBLE].split(",") if gpu.strip()]
    count = sum(1 for entry in devices.iterdir() if DEVICE_FILE.fullmatch(entry.name))
    return [str(number) for number in range(count)]
