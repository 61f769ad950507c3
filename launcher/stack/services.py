"""The services of one command: started together, watched until a stop is requested, ended in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from launcher.stack.loading_view import LoadingView
from launcher.stack.processes import become_subreaper, descendants, end_all
from launcher.stack.supervisor import Service, Supervisor, nothing_to_do

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from launcher.console import StackConsole
    from launcher.stack.stop_signals import StopSignals

Opened = TypeVar("Opened")
TICK_S = 0.1


class ServiceGroup:
    def __init__(self, console: StackConsole, signals: StopSignals) -> None:
        self._console = console
        self._signals = signals
        self._supervisor = Supervisor(console)

    @property
    def services(self) -> list[Service]:
        return self._supervisor.services

    def run(
        self, context: AbstractContextManager[Opened], work: Callable[[Opened], int], stop: Callable[[], None]
    ) -> int:
        """`work` in `context`, then `stop` and the end of whatever that left behind.

        The exit status is that of the work, or 128 + signal when it was stopped before it was ready.
        """
        become_subreaper()
        with self._signals.handled(), context as opened:
            try:
                return work(opened)
            except KeyboardInterrupt:
                return 128 + self._signals.received[0]
            finally:
                stop()
                end_all(descendants())

    def come_up(self, services: Sequence[Service], label: str) -> None:
        """A stop that is requested on the way is a KeyboardInterrupt."""
        with LoadingView(self._console, label) as view:
            for service in services:
                self._supervisor.start(service)
            deadline_s = time.monotonic() + services[0].start_timeout_s
            while not self._signals.stop_requested:
                waiting = [service for service in services if not self._supervisor.has_come_up(service)]
                view.read(services[0].child)
                if not waiting:
                    return
                if time.monotonic() > deadline_s:
                    late = waiting[0]
                    raise late.failure(f"{late.title} was not ready after {late.start_timeout_s:.0f} s")
                time.sleep(TICK_S)
            raise KeyboardInterrupt

    def watch(self, look_around: Callable[[], None] = nothing_to_do) -> None:
        """Until a stop is requested; `look_around` is called beside, many times a second."""
        while not self._signals.stop_requested:
            self._supervisor.tick()
            look_around()
            time.sleep(TICK_S)

    def start_again(self, service: Service) -> None:
        """After a stop; it is watched on, as one that is coming back."""
        service.ready, service.restart_at_s = False, None
        service.child.start()

    def stop(self, services: Sequence[Service]) -> None:
        running = [service for service in services if service.child.running]
        if running:
            with self._console.stage(f"Stopping {' and '.join(service.name for service in running)}"):
                self._end(running)

    def _end(self, services: Sequence[Service]) -> None:
        deadline_s = time.monotonic() + max(service.longest_stop_s() for service in services)
        for service in services:
            service.child.terminate()
        while any(service.child.running for service in services):
            if time.monotonic() >= deadline_s or self._signals.hurry_requested:
                break
            time.sleep(TICK_S)
        for service in services:
            service.child.kill()
