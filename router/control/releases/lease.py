"""Which router is in control: a lease in one row of the store, changed by compare-and-swap.

No two clocks are compared. The holder increments a number in the row with every heartbeat; another router
takes the lease when the row has not changed for a whole lease by its own clock. The holder stops acting some
seconds before that, by its own clock, and its writes are committed only while the row is still its own.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sql

from router.store.schema import control

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from router.store.database import Store

log = logging.getLogger(__name__)

_ROW = "releases"
_FREE = ""


class LostControl(Exception):
    """Another router is in control; what was about to be written is not."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    lease_s: float = 10.0
    renew_s: float = 3.0
    margin_s: float = 2.0  # the holder stops this much earlier than others may begin


@dataclass(slots=True)
class Lease:
    """`seek` and `release` run in a thread that may write to the store; `is_held` is for the event loop."""

    store: Store
    times: LeaseTimes = field(default_factory=LeaseTimes)
    clock: Callable[[], float] = time.monotonic
    process: str = field(default_factory=lambda: f"{_machine()}/{os.getpid()}/{secrets.token_hex(8)}")
    _held_until_s: float = -math.inf
    _seen: tuple[str, int] | None = None
    _seen_s: float = 0.0

    @property
    def is_held(self) -> bool:
        return self.clock() < self._held_until_s

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next beat."""
        return (
            self.clock() >= self._held_until_s - self.times.lease_s + self.times.margin_s + self.times.renew_s
        )

    def seek(self) -> bool:
        """Renews the lease, or takes it where it may be taken."""
        began_s = self.clock()
        with self.store.read() as connection:
            seen = read_holder(connection)
        if seen is not None and seen[0] != self.process and not self._may_take(seen, began_s):
            self._held_until_s = -math.inf
            return False
        with self.store.begin() as connection:
            taken = self._take(connection, seen or (_FREE, 0))
        if not taken:
            self._held_until_s = -math.inf
            return False
        if seen is None or seen[0] != self.process:
            log.info("this router is in control of the releases now")
        # From before the transaction: others cannot have seen the new beat any earlier.
        self._held_until_s = began_s + self.times.lease_s - self.times.margin_s
        return True

    def _take(self, connection: Connection, seen: tuple[str, int]) -> bool:
        """Only while the row is as it was seen."""
        connection.execute(self.store.insert_new(control).values(name=_ROW, process=_FREE, beat=0))
        row = control.c
        is_same = (row.name == _ROW) & (row.process == seen[0]) & (row.beat == seen[1])
        values = {"process": self.process, "beat": seen[1] + 1}
        return connection.execute(sql.update(control).where(is_same).values(values)).rowcount == 1

    def check(self, connection: Connection) -> None:
        """Within a transaction that writes: it is committed only by the one who is in control."""
        held = sql.select(control.c.name).where(control.c.name == _ROW, control.c.process == self.process)
        if not self.is_held or connection.execute(held.with_for_update()).first() is None:
            raise LostControl("another router is in control")

    def release(self) -> None:
        """So that no router has to wait for it to expire."""
        self._held_until_s = -math.inf
        is_ours = (control.c.name == _ROW) & (control.c.process == self.process)
        with self.store.begin() as connection:
            connection.execute(sql.update(control).where(is_ours).values(process=_FREE))

    def _may_take(self, row: tuple[str, int], now_s: float) -> bool:
        if row != self._seen:
            self._seen, self._seen_s = row, now_s
        is_lapsed = now_s - self._seen_s >= self.times.lease_s
        return row[0] == _FREE or is_lapsed or is_dead(row[0])


def read_holder(connection: Connection) -> tuple[str, int] | None:
    """The process in control, empty for none, and the number of its last heartbeat."""
    row = sql.select(control.c.process, control.c.beat).where(control.c.name == _ROW)
    found = connection.execute(row).first()
    return None if found is None else (found.process, found.beat)


def _machine() -> str:
    """This start of this machine, as far as its processes are to be seen from here; empty where unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def is_dead(process: str) -> bool:
    """Whether the holder was a process of this machine, and is none any more."""
    machine, _, rest = process.partition("/")
    pid = rest.partition("/")[0]
    if not machine or machine != _machine() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
