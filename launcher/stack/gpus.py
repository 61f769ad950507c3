"""How many Triton servers a machine has, and which GPUs each of them gets."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.placement import gpus_of_one, groups_of, place_of, servers_for_all

if TYPE_CHECKING:
    from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICE_FILE = re.compile(r"nvidia\d+")
DEVICES = Path("/dev")
ALL = "all"


def server_count(wanted: int | str, engine: Mapping[str, str]) -> int:
    """`all`: as many as have GPUs of their own; where the engine's parameters name GPUs, one has those."""
    if wanted != ALL:
        return int(wanted)
    if engine.get("gpu_device_ids"):
        return 1
    return servers_for_all(len(visible_gpus(os.environ, DEVICES)), gpus_of_one(engine))


def share_of_gpus(
    number: int, base: Mapping[str, str], devices: Path = DEVICES, size: int = 1
) -> dict[str, str]:
    """What to add to the environment of a server: one group of `size` GPUs after another, and round again.

    Nothing where there is one group or none. Engines count what they see from 0.
    """
    groups = groups_of(visible_gpus(base, devices), size)
    return {VISIBLE: ",".join(place_of(number, groups))} if len(groups) > 1 else {}


def visible_gpus(base: Mapping[str, str], devices: Path) -> list[str]:
    if VISIBLE in base:
        return [gpu.strip() for gpu in base[VISIBLE].split(",") if gpu.strip()]
    count = sum(1 for entry in devices.iterdir() if DEVICE_FILE.fullmatch(entry.name))
    return [str(number) for number in range(count)]
