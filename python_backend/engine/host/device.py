"""Where the engine computes: decided from what this machine has, without importing what is heavy."""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import (
    KV_PRECISIONS,
    PRECISIONS,
    DeviceSettings,
    EngineParameters,
    refusal,
)

_log = logging.getLogger("inflight.engine")

Version = tuple[int, int]

# What the GPU's kernels need; they are tested with torch 2.11 and triton 3.6.
OLDEST_CAPABILITY: Version = (8, 0)
OLDEST_FOR_FP8: Version = (8, 9)
OLDEST_TORCH: Version = (2, 9)
OLDEST_TRITON: Version = (3, 6)

# torch's own note on the CUDA that it was built for; None in builds for CPUs.
_BUILT_FOR = re.compile(r"^cuda\b[^=]*= *['\"](.+)['\"]", re.MULTILINE)
# Numbers of the driver's interface.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    capability: Version


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides: the GPUs the driver shows, the CUDA torch was built for, and which packages are there.

    A version is None where the package does not say; then nobody knows that it is too old.
    """

    gpus: tuple[Gpu, ...] = ()
    has_torch: bool = False
    torch_cuda: str | None = None
    has_triton: bool = False
    has_numba: bool = False
    torch_version: Version | None = None
    triton_version: Version | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """What was decided: a GPU, or the CPU; `unused` says what keeps a GPU that is there from being used."""

    gpu: Gpu | None = None
    number: int = 0
    unused: str | None = None

    @property
    def kind(self) -> str:
        return "cpu" if self.gpu is None else "cuda"

    @property
    def precisions(self) -> tuple[str, ...]:
        return self._without_missing(PRECISIONS)

    @property
    def kv_precisions(self) -> tuple[str, ...]:
        return self._without_missing(KV_PRECISIONS)

    def _without_missing(self, names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        has_fp8 = self.gpu is None or self.gpu.capability >= OLDEST_FOR_FP8
        return tuple(name for name in names[self.kind] if name != "fp8" or has_fp8)

    def settings(self, parameters: EngineParameters) -> DeviceSettings:
        """What holds on this device; refuses what it does not do."""
        found = parameters.on(self.kind)
        if found.precision not in self.precisions:
            allowed = ", ".join(("auto", *self.precisions))
            raise refusal("inflight_precision", found.precision, f"{allowed} ({self.why_no_fp8})")
        if parameters.inflight_kv_precision not in self.kv_precisions:
            allowed = f"{', '.join(self.kv_precisions)} ({self.why_no_fp8})"
            raise refusal("inflight_kv_precision", parameters.inflight_kv_precision, allowed)
        return found

    @property
    def why_no_fp8(self) -> str:
        assert self.gpu is not None
        return (
            f"{self.gpu.name} has compute capability {_dotted(self.gpu.capability)}; "
            f"fp8 needs {_dotted(OLDEST_FOR_FP8)}"
        )

    @property
    def notice(self) -> str | None:
        """What someone who has a GPU must be told."""
        return self.unused and f"Computing on the CPU: there is a GPU, but {self.unused}"

    def __str__(self) -> str:
        return "the CPU" if self.gpu is None else f"GPU {self.number} ({self.gpu.name})"


def choose_device(asked: str, gpu: int = 0) -> Device:
    """Refuses what this machine cannot do, saying what is missing."""
    # The driver is not woken where nobody wants it.
    device = decide(asked, gpu, Machine(has_numba=_is_there("numba")) if asked == "cpu" else look())
    if device.notice:
        _log.warning("%s", device.notice)
    return device


def look() -> Machine:
    torch = find_spec("torch")
    return Machine(
        visible_gpus(),
        torch is not None,
        built_for_cuda(torch.origin) if torch and torch.origin else None,
        _is_there("triton"),
        _is_there("numba"),
        _version("torch"),
        # torch's nightly builds bring it by the other name.
        _version("triton") or _version("pytorch-triton"),
    )


def _is_there(package: str) -> bool:
    return find_spec(package) is not None


def _version(package: str) -> Version | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        numbers = re.match(r"(\d+)\.(\d+)", importlib.metadata.version(package))
        return (int(numbers[1]), int(numbers[2])) if numbers else None
    return None


def decide(asked: str, gpu: int, machine: Machine) -> Device:
    missing = missing_for_cuda(machine, gpu)
    if asked == "cuda" or (asked == "auto" and missing is None):
        if missing is not None:
            raise _refusal(f"inflight_device is 'cuda', but {missing}")
        return Device(machine.gpus[gpu], gpu)
    if asked == "auto" and gpu > 0 and gpu >= len(machine.gpus):
        raise _refusal(f"{missing_gpu(gpu, machine)}; inflight_device = cpu computes on the CPU")
    if not machine.has_numba:
        why = f"inflight_device is {asked!r}, but numba, which the CPU needs, is not installed here"
        other = (
            f"an NVIDIA GPU would work too, but {missing}" if asked == "auto" else "install it, or use a GPU"
        )
        raise _refusal(f"{why}; {other}")
    return Device(unused=missing if machine.gpus and asked == "auto" else None)


def missing_for_cuda(machine: Machine, gpu: int = 0) -> str | None:
    """The first thing that keeps this machine from computing on a GPU, in words."""
    if not machine.gpus:
        return "no NVIDIA GPU is visible to this process"
    if gpu >= len(machine.gpus):
        return missing_gpu(gpu, machine)
    found = machine.gpus[gpu]
    if found.capability < OLDEST_CAPABILITY:
        return (
            f"GPU {gpu} ({found.name}) has compute capability {_dotted(found.capability)}; "
            f"the engine needs {_dotted(OLDEST_CAPABILITY)} or newer"
        )
    return missing_packages(machine)


def missing_gpu(gpu: int, machine: Machine) -> str:
    return f"gpu_device_ids is {gpu}, but this process sees {len(machine.gpus)} GPUs, counted from 0"


def missing_packages(machine: Machine) -> str | None:
    """The first that keeps this environment from computing on any GPU, in words."""
    if not machine.has_torch:
        return f"torch is not installed in {sys.prefix}"
    if machine.torch_cuda is None:
        return f"the torch in {sys.prefix} is built without CUDA"
    if not machine.has_triton:
        return f"triton, the compiler that CUDA builds of torch include, is not installed in {sys.prefix}"
    for name, found, oldest in (
        ("torch", machine.torch_version, OLDEST_TORCH),
        ("triton", machine.triton_version, OLDEST_TRITON),
    ):
        if found is not None and found < oldest:
            return (
                f"the {name} in {sys.prefix} is {_dotted(found)}; the engine needs {_dotted(oldest)} or newer"
            )
    return None


def visible_gpus() -> tuple[Gpu, ...]:
    """Those the driver shows this process; it knows CUDA_VISIBLE_DEVICES. No driver: none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_describe(driver, number) for number in range(count.value))


def _describe(driver: ctypes.CDLL, number: int) -> Gpu:
    handle, name = ctypes.c_int(0), ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuDeviceGet(ctypes.byref(handle), number)
    driver.cuDeviceGetName(name, _NAME_BYTES, handle)

    def attribute(which: int) -> int:
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), which, handle)
        return value.value

    capability = attribute(_CAPABILITY_MAJOR), attribute(_CAPABILITY_MINOR)
    return Gpu(name.value.decode(errors="replace"), capability)


def built_for_cuda(torch_init: str) -> str | None:
    """Read from its file: importing torch takes seconds."""
    try:
        found = _BUILT_FOR.search(Path(torch_init).with_name("version.py").read_text())
    except OSError:
        return None
    return found[1] if found else None


def _dotted(version: Version) -> str:
    return "{}.{}".format(*version)


def _refusal(sentence: str) -> InflightError:
    return InflightError(ErrorKind.UNSUPPORTED, sentence, "inflight_device")
