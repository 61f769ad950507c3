"""What a host fetches from the store, where it shares nothing else: files of releases, and what is served."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sql

from launcher.packaging.models.checkpoint import CheckpointError
from launcher.packaging.releases.delivery import Delivery, Undeliverable
from launcher.packaging.releases.directories import ReleaseDirectories
from launcher.secret_files import read_store_url
from launcher.settings import SettingsError, state_dir
from router.control.releases.records import list_releases
from router.control.releases.states import State
from router.control.releases.writes import COUNTER
from router.store.database import Store, read_counters
from router.store.release_files import find_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from launcher.console import StackConsole
    from launcher.settings import Settings
    from router.core.manifest import FileMark, Manifest

    Bring = Callable[[Delivery, Manifest, Sequence[FileMark]], object]

LOOK_EVERY_S = 2.0
AGAIN_AFTER_S = 10.0
# What a store says that is away, or has no tables yet because no router has started.
AWAY = (sql.exc.OperationalError, sql.exc.ProgrammingError)


def open_shared_store(settings: Settings) -> Store:
    """As it is: bringing its schema up to date is routers' work."""
    url = read_store_url(settings.router)
    if not url.startswith("postgresql"):
        raise SettingsError(
            'router.release_files = "store": hosts that share only the store need one that all of them '
            "can reach: set router.store_url or router.store_url_file to a postgresql:// address"
        )
    return Store(url)


class Spoken:
    """Progress for what happens beside: one line when a large file begins, for a bar would be in the way."""

    LARGE_BYTES = 50_000_000

    def __init__(self, console: StackConsole) -> None:
        self._console = console

    @contextmanager
    def stage(self, label: str, total_bytes: int | None = None) -> Iterator[Spoken]:
        if (total_bytes or 0) >= self.LARGE_BYTES:
            self._console.say(f"{label} ({(total_bytes or 0) / 1e6:,.0f} MB) ...")
        yield self

    def advance_to(self, done: int) -> None:
        """Nothing is drawn."""


class Follower:
    """Brings the files of all releases that are wanted, for as long as the command runs, in a thread.

    `begin` comes before, once, when the store can be used.
    """

    def __init__(
        self,
        settings: Settings,
        console: StackConsole,
        bring: Bring,
        begin: Callable[[Delivery], None] = lambda delivery: None,
    ) -> None:
        self._console = console
        self._bring = bring
        self._begin = begin
        self._has_begun = False
        self._store = open_shared_store(settings)
        directories = ReleaseDirectories(state_dir(settings).absolute() / "releases")
        self.delivery = Delivery(self._store, directories, settings.stack.data_dir, Spoken(console))
        self._stopping = threading.Event()
        self._seen = -1
        self._told = ""

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="releases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()

    def look(self) -> None:
        """Once; what cannot be brought now is told, and tried again."""
        with self._store.read() as connection:
            change = read_counters(connection).get(COUNTER, 0)
            if change == self._seen:
                return
            found = [
                each for each in list_releases(connection) if each.wanted and each.state is not State.GONE
            ]
            beside = {each.manifest.name: find_beside(connection, each.manifest.name) for each in found}
        failed: Exception | None = None
        for manifest in (each.manifest for each in found if not each.manifest.is_built_in):
            try:
                if self._bring(self.delivery, manifest, beside[manifest.name]):
                    self._console.say(f"{manifest.name} is on this host now.")
            except (Undeliverable, CheckpointError) as error:
                failed = failed or error  # the others are brought all the same
        if failed is not None:
            raise failed
        self._seen = change

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause_s = LOOK_EVERY_S
            try:
                if not self._has_begun:
                    self._begin(self.delivery)
                    self._has_begun = True
                self.look()
                self._told = ""
            except (*AWAY, Undeliverable, CheckpointError, OSError) as error:
                self._tell(f"Release files cannot be fetched: {str(error).splitlines()[0]}")
                pause_s = AGAIN_AFTER_S
            self._stopping.wait(pause_s)

    def _tell(self, problem: str) -> None:
        if problem != self._told:  # once, and not every few seconds
            self._told = problem
            self._console.problem(problem)
