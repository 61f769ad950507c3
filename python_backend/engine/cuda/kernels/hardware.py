"""What the device a kernel is launched on can do."""

from __future__ import annotations

from functools import cache

import torch


@cache
def is_hopper_or_newer(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
