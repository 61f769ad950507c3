"""A function that is called by its address gets what it is told, whatever tuples that comes in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba import njit

from python_backend.engine.native.addresses import address_of, call_at
from python_backend.engine.native.arithmetic import OPTIONS

pytestmark = pytest.mark.usefixtures("cpu_kernels")


class Places(NamedTuple):
    floats: Any
    counts: Any


@njit(**OPTIONS)
def scaled(x, factor):  # type: ignore[no-untyped-def]
    return x * factor


@njit(**OPTIONS)
def put(places, row, is_twice, nothing, factor):  # type: ignore[no-untyped-def]
    for i in range(places.floats.shape[1]):
        places.floats[row, i] = scaled(np.float32(places.counts[i]), factor)
        if is_twice and nothing is None:
            places.floats[row, i] *= 2


@njit
def caller(address, places, row, is_twice, nothing, factor):  # type: ignore[no-untyped-def]
    call_at(address, (places, row, is_twice, nothing, factor))  # type: ignore[call-arg]


@pytest.mark.parametrize("is_twice", [False, True])
def test_arrays_in_tuples_numbers_and_nothing_arrive_as_they_were_told(is_twice: bool) -> None:
    places = Places(np.zeros((3, 4), np.float32), np.arange(4))
    told = (places, 1, is_twice, None, np.float32(0.5))
    caller(address_of(put, tuple(map(numba.typeof, told))), *told)
    expected = np.zeros((3, 4), np.float32)
    expected[1] = np.arange(4) * (1.0 if is_twice else 0.5)
    np.testing.assert_array_equal(places.floats, expected)


SCRIPT = """
import sys
import numba
import numpy as np
from numba import njit
from python_backend.engine.native.addresses import address_of, call_at
from python_backend.engine.native.arithmetic import OPTIONS

@njit(cache=True, **OPTIONS)
def put(values, number):
    values[0] = number + 1

@njit
def caller(address, values, number):
    call_at(address, (values, number))

if __name__ == "__main__":
    values = np.zeros(1, np.int64)
    caller(address_of(put, (numba.typeof(values), numba.int64)), values, 41)
    print(sum(put.stats.cache_hits.values()), values[0])
"""


def test_a_function_without_a_way_in_from_python_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    runs = [
        subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=True)
        for _ in range(2)
    ]
    assert [run.stdout for run in runs] == ["0 42\n", "1 42\n"]
