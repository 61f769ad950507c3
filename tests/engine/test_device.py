"""Where the engine computes, from what a machine has."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from python_backend.engine.device import Machine, built_for_cuda, choose_device, decide
from python_backend.wire.errors import InflightError

CPU = Machine(has_numba=True)
GPU = Machine(gpus=1, has_torch=True, torch_cuda="13.0", has_triton=True)
machines = some.builds(
    Machine,
    some.integers(0, 2),
    some.booleans(),
    some.sampled_from([None, "13.0"]),
    some.booleans(),
    some.booleans(),
)


def test_a_gpu_that_torch_can_use_is_used_unless_the_cpu_is_asked_for() -> None:
    both = replace(GPU, has_numba=True)
    assert decide("auto", 0, both) == "cuda"
    assert decide("auto", 0, CPU) == "cpu"
    assert decide("cpu", 0, both) == "cpu"


@given(some.sampled_from(["auto", "cpu", "cuda"]), some.integers(0, 2), machines)
def test_a_machine_computes_where_everything_is_there_or_says_what_is_missing(
    asked: str, gpu: int, machine: Machine
) -> None:
    has_cuda = gpu < machine.gpus and machine.has_torch and machine.torch_cuda and machine.has_triton
    possible = {"cuda": has_cuda, "cpu": machine.has_numba}
    wanted = [name for name in possible if asked in ("auto", name)]
    if any(possible[name] for name in wanted):
        assert decide(asked, gpu, machine) == next(name for name in wanted if possible[name])
    else:
        with pytest.raises(InflightError, match=f"^inflight_device is '{asked}', and "):
            decide(asked, gpu, machine)


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        (CPU, "there is no NVIDIA GPU that this process can see"),
        (replace(GPU, has_torch=False), "torch is not installed in"),
        (replace(GPU, torch_cuda=None), "is built without CUDA"),
        (replace(GPU, has_triton=False), "triton, the compiler that torch's builds for CUDA bring, is not"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused_with_the_reason(machine: Machine, sentence: str) -> None:
    with pytest.raises(InflightError, match=sentence):
        decide("cuda", 0, machine)


def test_a_gpu_that_is_not_there_is_refused_by_number() -> None:
    with pytest.raises(InflightError, match="gpu_device_ids is 1, and this process sees 1, counted from 0"):
        decide("cuda", 1, GPU)


def test_without_numba_the_cpu_is_refused() -> None:
    with pytest.raises(InflightError, match="'cpu', and numba is not installed here"):
        decide("cpu", 0, GPU)
    with pytest.raises(InflightError, match=r"numba is not installed here.*there is no NVIDIA GPU"):
        decide("auto", 0, Machine())


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ('cuda = "12.8"', "12.8"),
        ("cuda: Optional[str] = None", None),
    ],
)
def test_what_torch_was_built_for_is_read_from_its_file(
    tmp_path: Path, line: str, version: str | None
) -> None:
    (tmp_path / "version.py").write_text(f"__all__ = ['cuda']\n{line}\nhip: Optional[str] = '6.4'\n")
    assert built_for_cuda(str(tmp_path / "__init__.py")) == version
    assert built_for_cuda(str(tmp_path / "elsewhere" / "__init__.py")) is None


def test_choosing_imports_nothing_heavy() -> None:
    program = (
        "import sys; from python_backend.engine.device import choose_device; choose_device('auto');"
        "print(sorted({'torch', 'numba', 'numpy', 'triton'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_this_machine_can_compute_somewhere() -> None:
    assert choose_device("cpu") == "cpu"
    assert choose_device("auto") in ("cpu", "cuda")
