"""Functions that are compiled as one module do what they do when numba compiles each by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

import pytest
from numba import njit

from python_backend.engine.native.one_module import compile_as_one

compile_as_one()
Function = TypeVar("Function")


def compiled(function: Function) -> Function:
    made: Any = njit(function)
    found: Function = made
    return found


@compiled
def _root(x: float) -> float:
    if x < 0:
        raise ValueError("nothing below zero")
    root: float = x**0.5
    return root


@compiled
def _twice(x: float) -> float:
    return _root(x) + _root(x)


@compiled
def _thrice(x: float) -> float:
    return _twice(x) + _root(x)


def test_a_function_calls_others_through_others() -> None:
    assert _thrice(4.0) == 6.0


def test_what_was_called_only_by_others_can_be_called_itself() -> None:
    assert _thrice(9.0) == 9.0
    assert _twice(9.0) == 6.0
    assert _root(9.0) == 3.0


def test_an_error_deep_inside_is_raised_with_its_words() -> None:
    with pytest.raises(ValueError, match="nothing below zero"):
        _thrice(-1.0)


SCRIPT = """
from numba import njit
from python_backend.engine.native.one_module import compile_as_one

compile_as_one()

@njit
def inner(x):
    if x == 0:
        raise ValueError("zero")
    return x + 1

@njit(cache=True)
def outer(x):
    return inner(x) * 2

if __name__ == "__main__":
    assert outer(2) == 6
    try:
        outer(0)
    except ValueError as error:
        print(sum(outer.stats.cache_hits.values()), error)
"""


def test_kept_code_is_found_and_runs_in_the_next_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    kept = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}  # not what an earlier run has kept
    command = [sys.executable, str(script)]
    runs = [
        subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, env=kept)
        for _ in range(2)
    ]
    assert [run.stdout for run in runs] == ["0 zero\n", "1 zero\n"]
