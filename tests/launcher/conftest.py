"""What the launcher's tests share: a silent console."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

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
