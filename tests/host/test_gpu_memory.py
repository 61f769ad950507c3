"""What NVIDIA's driver says of the memory of its GPUs, by a driver that a test plays."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from python_backend.host.gpu_memory import free_gpu_bytes

FREE = (7 << 30, 80 << 30)


class Driver:
    """The functions of its library that are called; `fails` is the one that does not work."""

    def __init__(self, fails: str = "") -> None:
        self._fails = fails
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.told.append(name)
            if name == self._fails:
                return 999
            if name == "nvmlDeviceGetCount_v2":
                arguments[0]._obj.value = len(FREE)
            elif name == "nvmlDeviceGetHandleByIndex_v2":
                arguments[1]._obj.value = arguments[0].value + 1
            elif name == "nvmlDeviceGetMemoryInfo":
                arguments[1]._obj.free = FREE[arguments[0].value - 1]
            return 0

        return call


def test_without_a_driver_nobody_can_tell() -> None:
    assert free_gpu_bytes("libnvidia-ml-that-is-not-there.so.1") is None


def test_each_gpu_has_what_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert free_gpu_bytes() == FREE
    assert driver.told[-1] == "nvmlShutdown"


@pytest.mark.parametrize(
    "fails",
    ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo"],
)
def test_a_driver_that_does_not_answer_tells_nothing(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(fails))
    assert free_gpu_bytes() is None
