"""Where the engine computes: decided from what this machine has, without importing what is heavy."""

from __future__ import annotations

import ctypes
import logging
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from python_backend.wire.errors import ErrorKind, InflightError

_log = logging.getLogger("inflight.engine")

# torch's own note on the CUDA that it was built for; None in builds for CPUs.
_BUILT_FOR = re.compile(r"^cuda\b[^=]*= *['\"](.+)['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides: the GPUs the driver shows, the CUDA torch was built for, and which packages are there."""

    gpus: int = 0
    has_torch: bool = False
    torch_cuda: str | None = None
    has_triton: bool = False
    has_numba: bool = False


def choose_device(asked: str, gpu: int = 0) -> str:
    """`cpu` or `cuda`; refuses what this machine cannot do, saying what is missing."""
    # The driver is not woken where nobody wants it.
    return decide(asked, gpu, Machine(has_numba=_is_there("numba")) if asked == "cpu" else look())


def look(pretend_gpu: bool = False) -> Machine:
    torch = find_spec("torch")
    return Machine(
        visible_gpus() or int(pretend_gpu),
        torch is not None,
        built_for_cuda(torch.origin) if torch and torch.origin else None,
        _is_there("triton"),
        _is_there("numba"),
    )


def _is_there(package: str) -> bool:
    return find_spec(package) is not None


def decide(asked: str, gpu: int, machine: Machine) -> str:
    missing = missing_for_cuda(machine, gpu)
    if asked == "cuda" or (asked == "auto" and missing is None):
        if missing is not None:
            raise _refusal(f"inflight_device is 'cuda', and {missing}")
        return "cuda"
    if not machine.has_numba:
        why = f"inflight_device is {asked!r}, and numba is not installed here; the CPU computes with it"
        other = f"an NVIDIA GPU would do, but {missing}" if asked == "auto" else "install it, or use a GPU"
        raise _refusal(f"{why}; {other}")
    if machine.gpus and asked == "auto":
        _log.warning("computing on the CPU: there is a GPU, but %s", missing)
    return "cpu"


def missing_for_cuda(machine: Machine, gpu: int = 0) -> str | None:
    """The first thing that keeps this machine from computing on a GPU, in words."""
    if not machine.gpus:
        return "there is no NVIDIA GPU that this process can see"
    if gpu >= machine.gpus:
        return f"gpu_device_ids is {gpu}, and this process sees {machine.gpus}, counted from 0"
    if not machine.has_torch:
        return f"torch is not installed in {sys.prefix}"
    if machine.torch_cuda is None:
        return f"the torch in {sys.prefix} is built without CUDA"
    if not machine.has_triton:
        return f"triton, the compiler that torch's builds for CUDA bring, is not installed in {sys.prefix}"
    return None


def visible_gpus() -> int:
    """How many the driver shows this process; it knows CUDA_VISIBLE_DEVICES. No driver: none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def built_for_cuda(torch_init: str) -> str | None:
    """Read from its file: importing torch takes seconds."""
    try:
        found = _BUILT_FOR.search(Path(torch_init).with_name("version.py").read_text())
    except OSError:
        return None
    return found[1] if found else None


def _refusal(sentence: str) -> InflightError:
    return InflightError(ErrorKind.UNSUPPORTED, sentence)
