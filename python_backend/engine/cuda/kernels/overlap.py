"""A kernel may be brought onto the device while the one before it ends, and waits there for its results.

Hundreds of small kernels run in a step; without this the device stands still for a microsecond between any
two of them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from python_backend.engine.cuda.kernels.hardware import is_hopper_or_newer


@triton.jit
def wait_for_predecessor(OVERLAPS: tl.constexpr):
    """To be called before anything is read that another kernel wrote, or written that another reads.

    At least one program of a kernel has to call it, whatever there is to do: the next kernel waits for this
    one alone, and takes it that all before it is done.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


_OVERLAPS: dict[str, Any] = {"OVERLAPS": True, "launch_pdl": True}
_WAITS_OUTSIDE: dict[str, Any] = {"OVERLAPS": False}


def overlap_options(tensor: torch.Tensor) -> dict[str, Any]:
    """Options of a launch whose kernel begins by waiting; devices before Hopper cannot do it."""
    return _OVERLAPS if is_hopper_or_newer(tensor.device) else _WAITS_OUTSIDE
