"""Lets models run outside Triton, on a typed stand-in for its stub."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.fakes.triton_stub import utils_module


@pytest.fixture(scope="package", autouse=True)
def triton_stub() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", utils_module())
        yield
