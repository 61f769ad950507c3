"""Money, whatever happens to the store or to the router: T40."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from tests.survival.conftest import Fortress, fortress, until

TOKENS = 40


async def ask(quick: Fortress, http: httpx.AsyncClient) -> int:
    """Completion tokens of an answer that came whole, or 0."""
    try:
        response = await http.post("/v1/completions", json=quick.completion(TOKENS))
    except httpx.HTTPError:
        return 0
    return TOKENS if response.status_code == 200 else 0


async def test_t40_while_the_store_is_locked_serving_goes_on_and_every_token_is_billed_later(
    sheet: Fortress,
) -> None:
    """Another process holds the database for longer than the router waits for it."""
    before = sheet.billed()[1]
    locked = sqlite3.connect(sheet.state_dir / "store.db", isolation_level=None)
    locked.execute("BEGIN EXCLUSIVE")
    delivered = 0
    async with sheet.client() as http:
        began_s = time.monotonic()
        while time.monotonic() < began_s + 3:
            delivered += sum(await asyncio.gather(*(ask(sheet, http) for _ in range(8))))
    locked.execute("COMMIT")
    locked.close()
    assert delivered > 0

    async def is_billed() -> bool:
        return sheet.billed()[1] - before == delivered

    await until(is_billed, "tokens are missing from the ledger, or there twice", 30)


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory, data_dir: Path, tokenizer: Tokenizer) -> object:
    with fortress(tmp_path_factory.mktemp("mortal"), data_dir, tokenizer) as running:
        yield running


async def test_t40_a_router_killed_again_and_again_bills_what_it_delivered_once(
    mortal: Fortress, full: bool
) -> None:
    """What a client got whole is in the ledger; an answer that was cut by the kill may be there or not."""
    chance, delivered, asked = random.Random(40), 0, 0
    for _ in range(50 if full else 4):
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
        return delivered <= mortal.billed()[1] <= asked

    await until(is_billed, "delivered tokens are missing from the ledger", 10)
    assert delivered > 0
    await asyncio.sleep(1.5)
    assert delivered <= mortal.billed()[1] <= asked, "a record was delivered twice"
