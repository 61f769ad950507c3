"""Waits for a release to come up or go, and keeps a table of all of them up to date."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from client.screen_parts import Status
from launcher.commands.output import keep_showing
from launcher.commands.release.control import NO_ROUTER, has_router_in_control
from launcher.commands.release.status import read_status
from launcher.commands.release.tables import status_view
from router.control.releases.lease import read_holder
from router.control.releases.records import find_release
from router.control.releases.states import State
from router.control.releases.writes import last_seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, RenderableType

    from launcher.commands.installation import Installation

POLL_S = 0.3
# Routers look twice a second whether anything has changed, and then read what is on disk of a release.
READ_WITHIN_S = 1.0
# Longer than anybody keeps the control without a sign of life.
SILENCE_S = 20.0
EXIT_DONE = 0
EXIT_NOT_DONE = 1
EXIT_INTERRUPTED = 130
_UNSEEN = "waiting for the router to find it in Triton"
_OUT = frozenset({State.ADDED, State.UNLOADED, State.FAILED, State.GONE})


class ReleaseWait:
    """For one release to be ready, or to be out. Who stops waiting leaves the wish in the store.

    It is ready when the router in control has found it in Triton after the change that asks for it: what the
    store calls ready may be from before a restart.
    """

    def __init__(
        self,
        installation: Installation,
        release: tuple[str, int],
        load_change: int | None,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._installation = installation
        self._release = release
        self._name = "{}@{}".format(*release)
        self._is_to_load = load_change is not None
        self._load_change = load_change or 0
        self._console = console
        self._clock = clock
        self._sleep = sleep
        self._beat: tuple[str, int] | None = None
        self._beat_s = clock()

    def run(self) -> int:
        """The exit status."""
        try:
            with Status("", self._console) as spinner:
                shown = ""
                while True:
                    state, outcome = self._look()
                    if state != shown:
                        self._show(state, spinner)
                        shown = state
                    if outcome is not None:
                        return outcome
                    self._sleep(POLL_S)
        except KeyboardInterrupt:
            what, undo = ("loaded", "unload") if self._is_to_load else ("unloaded", "load")
            self._say(
                f"Not waiting any longer: {self._name} is still to be {what} "
                f"(`inflight release {undo} {self._name}` takes that back)."
            )
            return EXIT_INTERRUPTED

    def _look(self) -> tuple[str, int | None]:
        """The state in words, and the exit status once there is nothing to wait for."""
        with self._installation.releases.look() as connection:
            release = find_release(connection, *self._release)
            is_seen = last_seen(connection, self._name) >= self._load_change
            somebody_acts = has_router_in_control(connection) and self._lives(read_holder(connection))
        state = release.state
        if self._is_to_load and state is State.FAILED:
            return f"failed: {release.reason}", EXIT_NOT_DONE
        if (state is State.READY and is_seen) if self._is_to_load else (state in _OUT):
            return state.value, EXIT_DONE
        if not somebody_acts:
            return NO_ROUTER, EXIT_NOT_DONE
        return _UNSEEN if self._is_to_load and state is State.READY else state.value, None

    def _lives(self, seen: tuple[str, int] | None) -> bool:
        if seen != self._beat:
            self._beat, self._beat_s = seen, self._clock()
        return self._clock() - self._beat_s < SILENCE_S

    def _show(self, state: str, spinner: Status) -> None:
        spinner.show(f"{self._name}: {state}")
        if state == NO_ROUTER:
            self._say(state)
        elif not self._console.is_terminal or state.startswith("failed"):
            self._say(f"{self._name}: {state}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def wait_until_read(
    installation: Installation, release: tuple[str, int], sleep: Callable[[float], None] = time.sleep
) -> None:
    """Until routers know that it is ready, and do not turn away a request that names it."""
    with installation.releases.look() as connection:
        since_s = find_release(connection, *release).since_s
    sleep(min(READ_WITHIN_S, max(0.0, since_s + READ_WITHIN_S - time.time())))


def watch(
    installation: Installation,
    model: str | None,
    console: Console,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Until Ctrl-C."""

    def draw() -> RenderableType:
        with installation.releases.look() as connection:
            return status_view(read_status(connection, model), time.time())

    keep_showing(console, draw, sleep)
