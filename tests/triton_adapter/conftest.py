"""Lets models run outside Triton, on a typed stand-in for its stub."""

from __future__ import annotations

import sys

import pytest

from tests.fakes.triton_stub import utils_module


@pytest.fixture(autouse=True)
def triton_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils_module())
