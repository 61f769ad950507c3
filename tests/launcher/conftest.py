"""What the launcher's tests share: a silent console, and where the converted default model is kept."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.settings import default_data_dir

if TYPE_CHECKING:
    from collections.abc import Iterator


class RecordedProgress:
    """Remembers which stages were shown."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.done = 0

    @contextmanager
    def stage(self, label: str, total_bytes: int | None = None) -> Iterator[RecordedProgress]:
        self.labels.append(label)
        yield self

    def advance_to(self, done: int) -> None:
        self.done = done

    def count(self, label: str) -> int:
        return sum(shown.startswith(label) for shown in self.labels)


@pytest.fixture
def progress() -> RecordedProgress:
    return RecordedProgress()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Where the default model is, or will be, converted once for all test runs."""
    return Path(os.environ.get("INFLIGHT_TEST_DATA_DIR") or default_data_dir())
