"""Fixtures for the tests that need the real thing: one stack for all of them that can share it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.stack import RunningStack, running_stack


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Where the converted default model is kept between runs."""
    chosen = os.environ.get("INFLIGHT_TEST_DATA_DIR")
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(chosen) if chosen else home / "inflight"


@pytest.fixture(scope="session")
def stack(data_dir: Path) -> Iterator[RunningStack]:
    """Triton, engine and router with the default model and default settings."""
    with running_stack(data_dir=data_dir) as running:
        yield running


@pytest.fixture(scope="session")
def checkpoint(stack: RunningStack, data_dir: Path) -> Path:
    """The default model's checkpoint; the stack has made it if it was not there."""
    return data_dir / "models" / stack.model
