"""A kernel may be brought onto the device while the one before it ends, and waits there for its results.

Hundreds of small kernels run in a step; without this the device stands still for a microsecond between any
two of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def wait_for_predecessor(OVERLAPS: tl.constexpr):
    """To be called before anything is read that another kernel wrote, or written that another reads."""
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


_OVERLAPS: dict[str, Any] = {"OVERLAPS": True, "launch_pdl": True}
_WAITS_OUTSIDE: dict[str, Any] = {"OVERLAPS": False}


def overlap_options(tensor: torch.Tensor) -> dict[str, Any]:
    """Options of a launch whose kernel begins by waiting; devices before Hopper cannot do it."""
    return _OVERLAPS if tensor.is_cuda and _can_overlap(tensor.device) else _WAITS_OUTSIDE


@cache
def _can_overlap(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
