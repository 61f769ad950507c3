"""Tenancy as the router uses it: verify, reserve and record on the event loop; all else in the background."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sql

from router.core.fair_pool import FairPool
from router.core.tenant import LOCAL, Caller, UsageRecord
from router.store.backup import back_up_before_migration
from router.store.backup_signature import Signer
from router.store.database import PepperError, Store, StoreAway, sqlite_url
from router.store.migrate import SchemaError
from router.store.private_directory import make_private
from router.store.schema import organisations
from router.tenants.administration import Administration
from router.tenants.budget import CurrentMonth, LeaseAnswer, LeaseAsk
from router.tenants.keys import Catalogue, Keyring, fingerprint, load_pepper
from router.tenants.ledger import Ledger, Reservation, must_ask_the_store
from router.tenants.limits import Refusal
from router.tenants.sessions import Sessions
from router.tenants.spool import SpoolInUse, claim_spool
from router.tenants.treasury import Treasury
from router.tenants.worker import Chore, Worker

log = logging.getLogger(__name__)
Result = TypeVar("Result")
# What a request waits for a lease at most: a store that hangs must not hold requests for as long as it does.
_LEASE_WAIT_S = 10.0
_WAITING_EACH = 256


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
        self.month = CurrentMonth()
        self._leasing = asyncio.Lock()
        self._waiting: set[asyncio.Task[Reservation | Refusal]] = set()
        self.spool = claim_spool(settings.spool_dir, settings.max_spool_bytes)
        self._treasury = Treasury(self.store, self.spool.process)
        self.keyring = Keyring(settings.pepper)
        self.sessions = Sessions(self.keyring, settings.pepper)
        self.ledger = Ledger()
        self.catalogue = Catalogue(self.store, self.keyring)
        self._administration = Administration(self.store, settings.pepper, self.catalogue.refresh)
        # Few: however many look, there are connections left for those who serve.
        self._lookers = FairPool("the administration", 2, _WAITING_EACH)
        self._acts = FairPool("the administration", 1, _WAITING_EACH)
        self.worker = Worker(
            [
                Chore("reading keys and limits", settings.poll_s, self.catalogue.refresh),
                Chore("delivering usage", settings.deliver_s, self.deliver),
                Chore("erasing deleted data", settings.deliver_s, self.store.erase_deleted),
            ]
        )

    def start(self) -> None:
        """Waits for the store: without it nobody's key could be verified."""
        prepare_store(self.store, self._settings)
        ensure_local(self.store)
        self.deliver()
        self._treasury.release()
        self.catalogue.refresh()
        self.spool.start()
        self.worker.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Usage is on disk when it returns, and in the store too if that answers in time."""
        self._lookers.close()
        self.spool.flush()
        self.worker.submit(self._hand_over_all)
        self.worker.stop(timeout_s)
        self.spool.close()
        self.store.close()

    async def reserve(
        self, caller: Caller, tokens: int, cost: int, requests: int = 1
    ) -> Reservation | Refusal:
        """Goes to the store only where this process's lease of a budget has run out.

        Still refused by `Limit.LEASE`: the store is unreachable, and what is left of the budget is not known.
        Whoever asks may leave meanwhile: what the store has leased is known here all the same.
        """
        month = self.month.at(time.time())
        answer = self.ledger.reserve(caller, tokens, cost, time.monotonic_ns(), month, requests)
        if not must_ask_the_store(answer):
            return answer
        leasing = asyncio.get_running_loop().create_task(
            self._reserve_leased(caller, tokens, cost, month, requests)
        )
        self._waiting.add(leasing)
        leasing.add_done_callback(self._waiting.discard)
        try:
            await asyncio.wait([leasing], timeout=_LEASE_WAIT_S)
        except asyncio.CancelledError:
            leasing.add_done_callback(_let_go)
            raise
        if leasing.done():
            return leasing.result()
        leasing.add_done_callback(_let_go)
        return answer

    @property
    def deployment(self) -> str:
        """The same for all routers that share a store."""
        return fingerprint(self._settings.pepper)

    def record(self, usage: UsageRecord) -> None:
        self.spool.append(usage)

    async def administer(self, act: Callable[[Administration], Result], tenant: str = "") -> Result:
        """Runs one act on the store's thread, by the tenant's turn; then this process knows of it."""
        async with self._acts.turn(tenant):
            return await asyncio.wrap_future(self.worker.submit(lambda: act(self._administration)))

    async def consult(self, look: Callable[[Administration], Result], tenant: str = "") -> Result:
        """For what only looks: however long it takes, keys and leases do not wait for it."""
        return await self._lookers.run(tenant, look, self._administration)

    async def keep_leases(self) -> None:
        """A task for as long as the router runs."""
        while True:
            await asyncio.sleep(self._settings.upkeep_s)
            for ask in self.ledger.upkeep(time.monotonic_ns()):
                try:
                    await self._keep(ask)
                except Exception:  # whatever it was, the others' leases must not run out with it
                    log.exception("a lease could not be renewed")

    async def _keep(self, ask: LeaseAsk) -> None:
        if ask.give_back:
            self.worker.submit(partial(self._treasury.give_back, ask, time.time()))
        else:
            await self._ask(ask)

    async def _reserve_leased(
        self, caller: Caller, tokens: int, cost: int, month: str, requests: int
    ) -> Reservation | Refusal:
        # One at a time: a burst of requests must not lease all there is for what the first lease covers.
        async with self._leasing:
            for ask in self.ledger.asks_for(caller, cost, time.monotonic_ns(), month):
                await self._ask(ask)
            return self.ledger.reserve(caller, tokens, cost, time.monotonic_ns(), month, requests)

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


def _let_go(leasing: asyncio.Task[Reservation | Refusal]) -> None:
    """Nobody waits for this reservation any more."""
    if not leasing.cancelled() and leasing.exception() is None:
        answer = leasing.result()
        if not isinstance(answer, Refusal):
            answer.cancel()


def ensure_local(store: Store) -> None:
    """The row of the tenant of a router without keys; the next start makes it again where it was deleted."""
    with store.begin() as connection:
        found = sql.select(organisations.c.deleted_s).where(organisations.c.id == LOCAL)
        row = connection.execute(found).first()
        if row is None or row.deleted_s is not None:
            version = store.next_change(connection)
            fresh = {"id": LOCAL, "name": LOCAL, "created_s": time.time(), "deleted_s": None}
            connection.execute(store.insert_or_update(organisations, {**fresh, "version": version}))


class StoreUnusable(Exception):
    """The store cannot be opened: the message says what is wrong with which setting."""


def tenancy_settings(
    data_dir: Path, store_url: str = "", pepper_file: str = "", max_spool_bytes: int = 256 << 20
) -> TenancySettings:
    make_private(data_dir)
    return TenancySettings(
        store_url=store_url or sqlite_url(data_dir / "store.db"),
        pepper=load_pepper(Path(pepper_file).expanduser() if pepper_file else data_dir / "pepper"),
        spool_dir=data_dir / "spool",
        max_spool_bytes=max_spool_bytes,
    )


def prepare_store(store: Store, settings: TenancySettings) -> None:
    signer = backup_signer(settings.pepper)
    back_up_before_migration(store, settings.spool_dir.parent / "backups", signer)
    store.prepare(signer.fingerprint)


def backup_signer(pepper: bytes) -> Signer:
    return Signer(pepper, fingerprint(pepper))


@contextmanager
def open_store(settings: TenancySettings) -> Iterator[Store]:
    store = Store(settings.store_url)
    try:
        prepare_store(store, settings)
        yield store
    finally:
        store.close()


@contextmanager
def open_administration(
    data_dir: Path, store_url: str = "", pepper_file: str = ""
) -> Iterator[Administration]:
    """For the command line, beside routers that run or without one; they learn of changes within a second."""
    with opening_store():
        settings = tenancy_settings(data_dir, store_url, pepper_file)
        with open_store(settings) as store:
            ensure_local(store)
            yield Administration(store, settings.pepper)


@contextmanager
def opening_store() -> Iterator[None]:
    """What keeps a store from being used, in words that name the setting."""
    try:
        yield
    except (PepperError, SchemaError, SpoolInUse) as error:
        raise StoreUnusable(f"store: {error}") from error
    except (sql.exc.ArgumentError, sql.exc.NoSuchModuleError) as error:
        allowed = "sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
        raise StoreUnusable(f"store_url: expected {allowed}") from error
    except ModuleNotFoundError as error:
        raise StoreUnusable(f"store_url: PostgreSQL needs the package psycopg: {error}") from error
    except StoreAway as error:
        reason = str(error.orig).partition("\n")[0] if isinstance(error, sql.exc.DBAPIError) else str(error)
        raise StoreUnusable(f"the store cannot be reached: {reason}") from error
