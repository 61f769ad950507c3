"""Where the engine computes, from what a machine has."""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from python_backend.engine.host import device
from python_backend.engine.host.device import (
    Device,
    Gpu,
    Machine,
    built_for_cuda,
    choose_device,
    decide,
    visible_gpus,
)
from python_backend.wire.errors import InflightError
from python_backend.wire.parameters import EngineParameters

H200, A100, V100 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA A100", (8, 0)), Gpu("Tesla V100", (7, 0))
CPU = Machine(has_numba=True)
GPU = Machine((H200,), True, "13.0", True, False, (2, 11), (3, 6))
machines = some.builds(
    Machine,
    some.lists(some.sampled_from([H200, A100, V100]), max_size=2).map(tuple),
    some.booleans(),
    some.sampled_from([None, "13.0"]),
    some.booleans(),
    some.booleans(),
    some.sampled_from([None, (2, 8), (2, 11)]),
    some.sampled_from([None, (3, 5), (3, 6)]),
)


def can_use(gpu: int, machine: Machine) -> bool:
    has_packages = machine.has_torch and machine.torch_cuda is not None and machine.has_triton
    is_new = machine.torch_version != (2, 8) and machine.triton_version != (3, 5)
    return has_packages and is_new and gpu < len(machine.gpus) and machine.gpus[gpu] != V100


def test_a_gpu_that_torch_can_use_is_chosen_unless_the_cpu_is_requested() -> None:
    both = replace(GPU, has_numba=True)
    assert decide("auto", 0, both) == Device(H200)
    assert decide("auto", 0, CPU) == decide("cpu", 0, both) == Device()
    assert str(Device(H200)) == "GPU 0 (NVIDIA H200)"
    assert str(Device()) == "the CPU"


@settings(deadline=None)
@given(some.sampled_from(["auto", "cpu", "cuda"]), some.integers(0, 2), machines)
def test_a_machine_computes_on_a_usable_device_or_says_what_is_missing(
    asked: str, gpu: int, machine: Machine
) -> None:
    possible = {"cuda": can_use(gpu, machine), "cpu": machine.has_numba}
    if asked == "auto" and gpu > 0 and gpu >= len(machine.gpus):
        possible = {"cuda": False, "cpu": False}
    wanted = [name for name in possible if asked in ("auto", name)]
    if any(possible[name] for name in wanted):
        found = decide(asked, gpu, machine)
        assert found.kind == next(name for name in wanted if possible[name])
        has_unused_gpu = asked == "auto" and found.kind == "cpu" and bool(machine.gpus)
        assert (found.notice is not None) == has_unused_gpu
    else:
        with pytest.raises(InflightError) as refused:
            decide(asked, gpu, machine)
        assert refused.value.param == "inflight_device"


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        (CPU, "no NVIDIA GPU is visible to this process"),
        (replace(GPU, has_torch=False), "torch is not installed in"),
        (replace(GPU, torch_cuda=None), "is built without CUDA"),
        (replace(GPU, has_triton=False), "triton, the compiler that CUDA builds of torch include, is not"),
        (
            replace(GPU, gpus=(V100,)),
            r"GPU 0 \(Tesla V100\) has compute capability 7.0; the engine needs 8.0 or newer",
        ),
        (replace(GPU, torch_version=(2, 8)), "the torch in .* is 2.8; the engine needs 2.9 or newer"),
        (replace(GPU, triton_version=(3, 5)), "the triton in .* is 3.5; the engine needs 3.6 or newer"),
    ],
)
def test_an_unusable_gpu_is_refused_with_the_reason(machine: Machine, sentence: str) -> None:
    with pytest.raises(InflightError, match=sentence):
        decide("cuda", 0, machine)


def test_a_gpu_number_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InflightError, match="gpu_device_ids is 1, but this process sees 1 GPUs, counted"):
        decide("cuda", 1, GPU)
    for machine in (CPU, replace(GPU, has_numba=True)):
        with pytest.raises(
            InflightError, match=r"gpu_device_ids is 1, .*; inflight_device = cpu computes on"
        ):
            decide("auto", 1, machine)
        assert decide("cpu", 1, machine) == Device()
    assert decide("auto", 0, CPU).notice is None, "nobody has missed a GPU"


def test_an_unused_gpu_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = replace(GPU, has_numba=True, torch_cuda=None)
    monkeypatch.setattr(device, "look", lambda: machine)
    sentence = f"Computing on the CPU: there is a GPU, but the torch in {sys.prefix} is built without CUDA"
    with caplog.at_level(logging.WARNING):
        assert choose_device("auto").notice == sentence
    assert sentence in caplog.text
    assert choose_device("cpu").notice is None


def test_fp8_needs_a_gpu_that_has_it() -> None:
    fp8 = EngineParameters("V1", "", inflight_precision="fp8")
    assert Device(H200).settings(fp8).precision == "fp8"
    with pytest.raises(
        InflightError,
        match=r"inflight_precision is 'fp8'; allowed: auto, fp32, bf16 \(NVIDIA A100 has compute "
        r"capability 8.0; fp8 needs 8.9\)",
    ):
        Device(A100).settings(fp8)
    assert Device(A100).settings(EngineParameters("V1", "")).precision == "bf16"
    assert Device().precisions == ("fp32", "int8", "int4")


def test_fp8_keys_and_values_need_a_gpu_that_has_it() -> None:
    fp8 = EngineParameters("V1", "", inflight_kv_precision="fp8")
    assert Device(H200).settings(fp8).precision == "bf16"
    for found, why in (
        (Device(A100), r"NVIDIA A100 has compute capability 8.0; fp8 needs 8.9"),
        (Device(), "this machine computes on the CPU"),
    ):
        with pytest.raises(InflightError, match=rf"inflight_kv_precision is 'fp8'; allowed: auto \({why}\)"):
            found.settings(fp8)


class FakeDriver:
    """libcuda with one GPU, numbered 5 by the driver itself."""

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, handle: Any, number: int) -> int:
        handle._obj.value = 5 + number
        return 0

    def cuDeviceGetName(self, name: Any, length: int, handle: Any) -> int:
        assert handle.value == 5
        name.value = b"NVIDIA L4"
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: int, handle: Any) -> int:
        assert handle.value == 5
        value._obj.value = {75: 8, 76: 9}[which]
        return 0


def test_the_driver_lists_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver())
    assert visible_gpus() == (Gpu("NVIDIA L4", (8, 9)),)


def test_versions_are_read_from_package_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"torch": "2.11.0+cu130", "pytorch-triton": "3.6.0+git1234"}

    def version(package: str) -> str:
        if package not in known:
            raise importlib.metadata.PackageNotFoundError(package)
        return known[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    machine = device.look()
    assert (machine.torch_version, machine.triton_version) == ((2, 11), (3, 6))
    known.clear()
    machine = device.look()
    assert (machine.torch_version, machine.triton_version) == (None, None)


def test_without_numba_the_cpu_is_refused() -> None:
    with pytest.raises(InflightError, match="'cpu', but numba, which the CPU needs, is not installed here"):
        decide("cpu", 0, GPU)
    with pytest.raises(InflightError, match=r"numba.* is not installed here.*no NVIDIA GPU"):
        decide("auto", 0, Machine())


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ('cuda = "12.8"', "12.8"),
        ("cuda: Optional[str] = None", None),
    ],
)
def test_torchs_cuda_version_is_read_from_its_file(tmp_path: Path, line: str, version: str | None) -> None:
    (tmp_path / "version.py").write_text(f"__all__ = ['cuda']\n{line}\nhip: Optional[str] = '6.4'\n")
    assert built_for_cuda(str(tmp_path / "__init__.py")) == version
    assert built_for_cuda(str(tmp_path / "elsewhere" / "__init__.py")) is None


def test_choosing_a_device_imports_nothing_heavy() -> None:
    program = (
        "import sys; from python_backend.engine.host.device import choose_device; choose_device('auto');"
        "print(sorted({'torch', 'numba', 'numpy', 'triton'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_this_machine_has_a_usable_device() -> None:
    assert choose_device("cpu").kind == "cpu"
    assert choose_device("auto").kind in ("cpu", "cuda")
