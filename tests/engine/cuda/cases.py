"""Which cases run where: interpreted, few that take every branch of a kernel; on a GPU all of them."""

from __future__ import annotations

import os
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def on_gpu(*cases: Any) -> list[ParameterSet]:
    """Cases of a parametrized test that take no branch which the others do not."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*row, marks=pytest.mark.gpu) for row in rows]


def examples(compiled: int, interpreted: int) -> int:
    return interpreted if os.environ.get("TRITON_INTERPRET") == "1" else compiled
