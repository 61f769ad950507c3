"""What is free of the memory of NVIDIA's GPUs, as their driver says: no context is made on them."""

from __future__ import annotations

import ctypes


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def free_gpu_bytes(library: str = "libnvidia-ml.so.1") -> tuple[int, ...] | None:
    """Of each GPU that this machine, or container, has; None where there is no driver that tells."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return None
    if driver.nvmlInit_v2() != 0:
        return None
    try:
        return _read(driver)
    finally:
        driver.nvmlShutdown()


def _read(driver: ctypes.CDLL) -> tuple[int, ...] | None:
    count = ctypes.c_uint(0)
    if driver.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return None
    found = []
    for number in range(count.value):
        handle, memory = ctypes.c_void_p(), _Memory()
        if driver.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)) != 0:
            return None
        if driver.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
            return None
        found.append(int(memory.free))
    return tuple(found)
