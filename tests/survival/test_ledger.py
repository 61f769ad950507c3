"""Money, whatever happens to the store or to the router: T40."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import httpx
import psutil
import pytest

from tests.survival.conftest import Fortress
from tests.waiting import until

TOKENS = 40


async def ask(quick: Fortress, http: httpx.AsyncClient) -> int:
    """Completion tokens of an answer that came whole, or 0."""
    try:
        response = await http.post("/v1/completions", json=quick.completion(TOKENS))
    except httpx.HTTPError:
        return 0
    return TOKENS if response.status_code == 200 else 0


@contextmanager
def locked(quick: Fortress) -> Iterator[None]:
    """Another process holds the database, for longer than the router waits for it."""
    with closing(sqlite3.connect(quick.state_dir / "store.db", isolation_level=None)) as store:
        store.execute("BEGIN EXCLUSIVE")
        yield
        store.execute("COMMIT")


@contextmanager
def full_disk(quick: Fortress) -> Iterator[None]:
    """No file of the router's may grow: the store, the spool and the log get nothing on disk."""
    no_limit = (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY)
    quick.router.rlimit(psutil.RLIMIT_FSIZE, (0, psutil.RLIM_INFINITY))
    yield
    quick.router.rlimit(psutil.RLIMIT_FSIZE, no_limit)


@pytest.mark.parametrize("trouble", [locked, full_disk])
async def test_t40_while_nothing_can_be_stored_serving_goes_on_and_every_token_is_billed_later(
    sheet: Fortress, trouble: Callable[[Fortress], AbstractContextManager[None]]
) -> None:
    before = sheet.billed()[1]
    delivered = 0
    async with sheet.client() as http:
        with trouble(sheet):
            began_s = time.monotonic()
            while time.monotonic() < began_s + 3:
                answers = await asyncio.gather(*(ask(sheet, http) for _ in range(8)))
                assert all(answers), "somebody was not served"
                delivered += sum(answers)

    async def is_billed() -> bool:
        return sheet.billed()[1] - before == delivered

    await until(is_billed, "tokens are missing from the ledger, or there twice", 30)


async def test_t40_a_router_killed_again_and_again_bills_what_it_delivered_once(
    mortal: Fortress, thorough: bool, figure: Callable[[str], None]
) -> None:
    """What a client got whole is in the ledger; an answer that was cut by the kill may be there or not."""
    chance, delivered, asked = random.Random(40), 0, 0
    before = mortal.billed()[1]
    kills = 4 if thorough else 2  # a launcher gives up what dies a sixth time soon after its start
    for _ in range(kills):
        router = mortal.router
        async with mortal.client() as http:
            asking = [asyncio.ensure_future(ask(mortal, http)) for _ in range(12)]
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            os.kill(router.pid, signal.SIGKILL)
            delivered += sum(await asyncio.gather(*asking))
            asked += len(asking) * TOKENS

            async def is_back() -> bool:
                try:
                    return (await http.get("/health/ready")).status_code == 200
                except httpx.HTTPError:
                    return False

            await until(is_back, "the router does not come back", 30)
    async with mortal.client() as http:
        delivered += await ask(mortal, http)
        asked += TOKENS

    async def is_billed() -> bool:
        return delivered <= mortal.billed()[1] - before <= asked

    await until(is_billed, "delivered tokens are missing from the ledger", 30)
    assert delivered > 0
    figure(f"{kills} kills: {delivered:,} tokens told, all billed once")
    await asyncio.sleep(1.5)
    assert delivered <= mortal.billed()[1] - before <= asked, "a record was delivered twice"
