"""Keeps a stack's processes running: notices the dead and the broken, and starts them again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from launcher.failure import ProcessFailed
from launcher.stack.log_excerpt import failure_lines, last_lines
from launcher.stack.processes import ChildProcess, reap_adopted
from launcher.stack.restart_policy import LONGEST_DELAY_S, RestartPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.console import StackConsole


def nothing_wrong(now_s: float) -> str | None:
    return None


def nothing_to_do() -> None:
    return None


@dataclass
class Service:
    """A supervised process with what is known about it beyond being alive.

    Its `peers` do the same work: while one of them is ready, the stack goes on without it.
    """

    name: str
    child: ChildProcess
    is_ready: Callable[[], bool]
    start_timeout_s: float
    longest_stop_s: Callable[[], float]
    find_fault: Callable[[float], str | None] = nothing_wrong
    clean_up_after: Callable[[], None] = nothing_to_do
    peers: list[Service] = field(default_factory=list, repr=False)
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    ready: bool = False
    crashed_at_start: bool = False
    restart_at_s: float | None = None

    @property
    def title(self) -> str:
        return self.name[0].upper() + self.name[1:]

    def failure(self, what: str) -> ProcessFailed:
        lines = failure_lines(self.child.log_lines())
        return ProcessFailed(f"{what}; {self.child.where_logged}", lines)


class Supervisor:
    """Looks at each service in turn; `tick` never waits longer than a readiness probe."""

    def __init__(self, console: StackConsole) -> None:
        self.services: list[Service] = []
        self._console = console

    def start(self, service: Service) -> None:
        self.services.append(service)
        service.child.start()

    def has_come_up(self, service: Service) -> bool:
        """Whether a service is ready for the first time; one that ends before that is not tried again.

        One that crashes is, once: Triton aborts now and then as it loads, and not the next time.
        """
        reap_adopted(each.child for each in self.services)
        for each in self.services:
            if not each.child.running:
                self._start_after_crash(each)
        service.ready = service.is_ready()
        return service.ready

    def _start_after_crash(self, service: Service) -> None:
        how = service.child.exit_description
        if not service.child.crashed or service.crashed_at_start:
            raise service.failure(f"{service.title} did not start ({how})")
        service.crashed_at_start, service.ready = True, False
        self._console.problem(
            f"{service.title} crashed as it started ({how}); trying once more.",
            last_lines(service.child.log_lines()),
        )
        service.clean_up_after()
        service.child.start()

    def tick(self) -> None:
        reap_adopted(each.child for each in self.services)
        for service in self.services:
            self._look_after(service, time.monotonic())

    def _look_after(self, service: Service, now_s: float) -> None:
        if service.restart_at_s is not None:
            if now_s >= service.restart_at_s:
                service.restart_at_s = None
                service.child.start()
        elif not service.child.running:
            self._schedule_restart(service, f"died ({service.child.exit_description})", now_s)
        elif not service.ready:
            self._await_return(service, now_s)
        elif fault := service.find_fault(now_s):
            service.child.kill()
            self._schedule_restart(service, f"is broken ({fault})", now_s)

    def _await_return(self, service: Service, now_s: float) -> None:
        service.ready = service.is_ready()
        if service.ready:
            self._console.say(f"{service.title} is back.")
        elif now_s - service.child.started_at_s > service.start_timeout_s:
            service.child.kill()
            self._schedule_restart(service, "was not ready in time", now_s)

    def _schedule_restart(self, service: Service, what: str, now_s: float) -> None:
        lived_s = now_s - service.child.started_at_s
        # However long it took to load: one that was never ready has not proved itself.
        delay_s = service.policy.delay_after_death(lived_s if service.ready else 0.0)
        service.ready = False
        service.clean_up_after()
        if delay_s is None and any(peer.ready for peer in service.peers):
            delay_s = LONGEST_DELAY_S
        if delay_s is None:
            raise service.failure(f"{service.title} {what} and keeps failing: giving up")
        service.restart_at_s = now_s + delay_s
        message = f"{service.title} {what} after {lived_s:.0f} s; starting it again in {delay_s:g} s."
        self._console.problem(message, last_lines(service.child.log_lines()))
