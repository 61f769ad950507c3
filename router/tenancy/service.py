"""Tenancy as the router uses it: verify, reserve and record on the event loop; all else in the background."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from router.store.database import Store, StoreAway
from router.tenancy.administration import Administration
from router.tenancy.calendar import CurrentMonth
from router.tenancy.catalogue import Catalogue
from router.tenancy.keyring import Keyring
from router.tenancy.keys import fingerprint
from router.tenancy.ledger import Ledger, must_ask_the_store
from router.tenancy.local import ensure_local
from router.tenancy.spending import Treasury
from router.tenancy.spool import claim_spool
from router.tenancy.worker import Chore, Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from router.tenancy.budget import LeaseAnswer, LeaseAsk
    from router.tenancy.keyring import Caller
    from router.tenancy.ledger import Reservation
    from router.tenancy.limits import Refusal
    from router.tenancy.model import UsageRecord

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TenancySettings:
    """Where things are kept. Routers that share a store share the pepper; each takes a spool of its own."""

    store_url: str
    pepper: bytes
    spool_dir: Path
    max_spool_bytes: int = 256 << 20
    poll_s: float = 0.5
    deliver_s: float = 0.5
    upkeep_s: float = 1.0


class Tenancy:
    """Started before the first request and stopped after the last one."""

    def __init__(self, settings: TenancySettings) -> None:
        self._settings = settings
        self.store = Store(settings.store_url)
        self._month = CurrentMonth()
        self._leasing = asyncio.Lock()
        self.spool = claim_spool(settings.spool_dir, settings.max_spool_bytes)
        self._treasury = Treasury(self.store, self.spool.process)
        self.keyring = Keyring(settings.pepper)
        self.ledger = Ledger()
        self.catalogue = Catalogue(self.store, self.keyring)
        self._administration = Administration(self.store, settings.pepper, self.catalogue.refresh)
        self.worker = Worker(
            [
                Chore("reading keys and limits", settings.poll_s, self.catalogue.refresh),
                Chore("delivering usage", settings.deliver_s, self.deliver),
            ]
        )

    def start(self) -> None:
        """Waits for the store: without it nobody's key could be verified."""
        self.store.prepare(fingerprint(self._settings.pepper))
        ensure_local(self.store)
        self.deliver()
        self._treasury.release()
        self.catalogue.refresh()
        self.spool.start()
        self.worker.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Usage is on disk when it returns, and in the store too if that answers in time."""
        self.spool.flush()
        self.worker.submit(self._hand_over_all)
        self.worker.stop(timeout_s)
        self.spool.close()
        self.store.close()

    async def reserve(self, caller: Caller, tokens: int, cost: int) -> Reservation | Refusal:
        """Goes to the store only where this process's lease of a budget has run out.

        Still refused by `Limit.LEASE`: the store is away, and nobody knows what is left of the budget.
        """
        now_s = time.time()
        month = self._month.at(now_s)
        answer = self.ledger.reserve(caller, tokens, cost, time.monotonic_ns(), month)
        if not must_ask_the_store(answer):
            return answer
        # One at a time: a burst of requests must not lease all there is for what the first lease covers.
        async with self._leasing:
            for ask in self.ledger.asks_for(caller, cost, time.monotonic_ns(), month):
                await self._ask(ask)
        return self.ledger.reserve(caller, tokens, cost, time.monotonic_ns(), month)

    @property
    def has_keys(self) -> bool:
        """Also one that was revoked: taking back the last key must not open the door."""
        return len(self.keyring) > 0

    def record(self, usage: UsageRecord) -> None:
        self.spool.append(usage)

    async def administer(self, act: Callable[[Administration], Result]) -> Result:
        """Runs one act on the store's thread; when it returns, this process knows of it."""
        return await asyncio.wrap_future(self.worker.submit(lambda: act(self._administration)))

    async def keep_leases(self) -> None:
        """A task for as long as the router runs."""
        while True:
            await asyncio.sleep(self._settings.upkeep_s)
            for ask in self.ledger.upkeep(time.monotonic_ns()):
                if ask.give_back:
                    self.worker.submit(partial(self._treasury.give_back, ask, time.time()))
                else:
                    await self._ask(ask)

    async def _ask(self, ask: LeaseAsk) -> None:
        asked_ns = time.monotonic_ns()
        try:
            answer: LeaseAnswer = await asyncio.wrap_future(
                self.worker.submit(lambda: self._treasury.lease(ask, time.time()))
            )
        except StoreAway:
            return
        self.ledger.granted(ask, answer, asked_ns)

    def deliver(self) -> None:
        """On the store's thread: all usage recorded so far is in the store."""
        self.spool.deliver(self._treasury.charge)

    def _hand_over_all(self) -> None:
        self.deliver()
        self._treasury.release()
