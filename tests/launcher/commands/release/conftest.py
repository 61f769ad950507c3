"""The commands, on an installation of their own."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from launcher.commands.installation import Installation, open_installation
from launcher.commands.release import release
from router.control.releases import records
from router.control.releases.lease import Lease
from router.control.releases.states import State
from router.control.releases.writes import COUNTER, note_seen, set_state
from router.store.database import Store, read_counters, sqlite_url
from tests.launcher import shell
from tests.launcher.commands.release.materials import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.control.releases.records import Release

# No weights are packed and no kernels compiled for it.
SYNTHETIC = ("--set", "inflight_runtime=synthetic")


class Shell(shell.Shell):
    commands = release

    @property
    def releases(self) -> Path:
        return self.data_dir / "releases"

    @property
    def repository(self) -> Path:
        return self.releases / "repository"

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))

    def files(self) -> list[str]:
        """All that lies with the releases."""
        return sorted(
            path.relative_to(self.releases).as_posix() for path in self.releases.rglob("*") if path.is_file()
        )

    @contextmanager
    def opened(self) -> Iterator[Installation]:
        with open_installation(self.data_dir, None) as ours:
            yield ours

    @contextmanager
    def store(self) -> Iterator[Store]:
        store = Store(sqlite_url(self.data_dir / "store.db"))
        yield store
        store.close()

    def release(self, model: str, version: int) -> Release:
        with self.store() as store, store.read() as connection:
            return records.find_release(connection, model, version)

    def comes_to(self, model: str, version: int, state: State, reason: str = "") -> None:
        """What the router in control would write."""
        with self.store() as store, store.begin() as connection:
            set_state(connection, 1000.0, model, version, state, reason)
            if state is State.READY:
                note_seen(store, connection, {f"{model}@{version}": read_counters(connection)[COUNTER]})

    @contextmanager
    def router_in_control(self) -> Iterator[None]:
        with self.store() as store:
            lease = Lease(store)
            assert lease.seek()
            yield
            lease.release()


@pytest.fixture
def inflight(own_data_dir: Path) -> Shell:
    return Shell(own_data_dir)


@pytest.fixture(scope="session")
def served_data_dir(fresh_data_dir: Path) -> Path:
    shell = Shell(fresh_data_dir.with_name("served"))
    shutil.copytree(fresh_data_dir, shell.data_dir)
    checkpoint = write_checkpoint(fresh_data_dir.with_name("m"))
    for version in (1, 2, 3):
        shell("add", "m", str(checkpoint), *SYNTHETIC, "--notes", f"number {version}")
        shell.comes_to("m", version, State.READY)
    shell("promote", "m@1")
    return shell.data_dir


@pytest.fixture
def served(served_data_dir: Path, tmp_path: Path) -> Shell:
    """The model m with three releases that are ready, the first of which answers."""
    shutil.copytree(served_data_dir, tmp_path / "data")
    return Shell(tmp_path / "data")
