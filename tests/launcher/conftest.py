"""What the launcher's tests share: a silent console, and a store that has its tables."""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import typer.testing
from typer.main import get_command

from launcher.stack.processes import ChildProcess, descendants
from router.tenants.tenancy import open_store, tenancy_settings
from tests.in_memory import folder_in_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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


@pytest.fixture(scope="session", autouse=True)
def commands_are_built_once() -> Iterator[None]:
    """Typer reads the signatures of all of them for each that is run, which takes longer than most do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(get_command))
        yield


@pytest.fixture(autouse=True)
def others_processes_are_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher ends all processes below it: below a worker of the tests, those of other tests as well."""
    began_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    def own(spare: Iterable[ChildProcess] = ()) -> list[psutil.Process]:
        return [
            each for each in descendants(spare) if each.create_time() - psutil.boot_time() > began_s - 0.1
        ]

    for user in ("services", "triton_services"):
        monkeypatch.setattr(f"launcher.stack.{user}.descendants", own)


@pytest.fixture
def progress() -> RecordedProgress:
    return RecordedProgress()


@pytest.fixture(scope="session")
def fresh_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a store that has its tables: making them takes longer than most tests."""
    directory = tmp_path_factory.mktemp("fresh") / "data"
    with open_store(tenancy_settings(directory)):
        return directory


@pytest.fixture
def own_data_dir(fresh_data_dir: Path) -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield Path(shutil.copytree(fresh_data_dir, folder / "data"))
