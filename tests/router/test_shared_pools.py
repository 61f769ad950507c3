"""What all tenants wait for is divided among them, and nobody waits for whoever has left."""

from __future__ import annotations

import asyncio
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from python_backend.sharing.processor_share import ProcessorShare
from python_backend.wire.errors import ErrorKind, InflightError
from router.content.documents import readers
from router.core.fair_pool import FairPool, unless_left
from router.core.tenant import Limits
from tests.pace import patience
from tests.router.content.documents.pdf_files import pdf
from tests.router.running import MODEL, RunningRouter

# Stands for a PDF that takes as long as it may.
SLOW = b"%PDF- slow"
READER = """
import struct, sys, time
print(flush=True)
while head := sys.stdin.buffer.read(9):
    if b"slow" in sys.stdin.buffer.read(struct.unpack(">cQ", head)[1]):
        time.sleep(3600)
    sys.stdout.buffer.write(struct.pack(">?dQ", True, 0.0, 6) + b"A page")
    sys.stdout.buffer.flush()
"""


@pytest.fixture
def slow_pdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "reader.py"
    program.write_text(READER)
    monkeypatch.setattr(readers, "_PROGRAM", program)


async def ask_about(router: RunningRouter, key: str, data: bytes) -> httpx.Response:
    file = {"file_data": f"data:application/pdf;base64,{b64encode(data).decode()}", "filename": "a.pdf"}
    message = {"role": "user", "content": [{"type": "file", "file": file}]}
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": MODEL, "messages": [message]}
    return await router.http.post("/v1/chat/completions", json=body, headers=headers, timeout=patience(30))


async def test_slow_pdfs_of_one_tenant_delay_no_other_and_end_when_it_leaves(
    slow_pdfs: None, router: RunningRouter
) -> None:
    greedy = await router.new_key(await router.new_tenant("greedy"))
    other = await router.new_key(await router.new_tenant("other"))
    many = [asyncio.create_task(ask_about(router, greedy, SLOW)) for _ in range(40)]
    done, waiting = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result().status_code for task in done} == {429}  # of its own line alone
    assert (await ask_about(router, other, pdf("A page"))).status_code == 200
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert (await ask_about(router, greedy, pdf("A page"))).status_code == 200


async def test_pdfs_of_a_caller_without_budget_are_not_read(slow_pdfs: None, router: RunningRouter) -> None:
    key = await router.new_key(await router.new_tenant(limits=Limits(tokens_per_min=0)))
    response = await ask_about(router, key, SLOW)
    assert (response.status_code, "tokens per minute" in response.text) == (429, True)


async def test_work_in_a_thread_keeps_its_place_until_it_ends_though_nobody_waits_for_it() -> None:
    pool = FairPool("a test", places=1, waiting_each=1)
    began, end = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        end.wait(patience(30))

    first = asyncio.create_task(pool.run("greedy", work))
    await asyncio.to_thread(began.wait, patience(30))
    first.cancel()
    second = asyncio.create_task(pool.run("other", lambda: "done"))
    await asyncio.wait([first])
    assert not second.done()
    end.set()
    assert await second == "done"


async def test_who_is_cancelled_while_waiting_takes_no_turn() -> None:
    pool = FairPool("a test", places=1, waiting_each=2)
    async with pool.turn("a"):
        gone = asyncio.create_task(pool.run("a", lambda: "never"))
        last = asyncio.create_task(pool.run("a", lambda: "last"))
        await asyncio.sleep(0)
        with pytest.raises(InflightError) as refused:
            async with pool.turn("a"):
                raise AssertionError("its line was full")
        assert refused.value.kind is ErrorKind.RATE_LIMITED
        gone.cancel()
        await asyncio.wait([gone])
    assert await last == "last"


async def test_who_has_worked_for_longer_than_its_share_rests_and_others_do_not() -> None:
    share = ProcessorShare(0.2, free_s=0.0)
    pool = FairPool("a test", places=2, waiting_each=2, share=share)

    def work() -> None:
        end_s = time.thread_time() + 0.02
        while time.thread_time() < end_s:
            pass

    began_s = time.monotonic()
    await pool.run("greedy", work)
    again = asyncio.create_task(pool.run("greedy", time.monotonic))
    await pool.run("other", work)
    assert await again - began_s >= 0.02 * 4  # it rests for four fifths of the time, less a little


async def test_a_client_that_leaves_ends_the_work_for_it() -> None:
    leaving: list[Callable[[], None]] = []
    waiting = asyncio.Event()

    async def work() -> None:
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(unless_left(work(), leaving.append))
    await waiting.wait()
    leaving[0]()
    with pytest.raises(InflightError, match="the client left"):
        await task


async def test_the_store_keeps_a_thread_for_others_and_forgets_who_has_left(router: RunningRouter) -> None:
    store = router.parts.store
    greedy, other = await router.new_tenant("greedy"), await router.new_tenant("other")
    key = await router.new_key(greedy)
    end = threading.Event()

    def hold(_: object) -> None:
        end.wait(patience(60))

    held = [asyncio.create_task(store.read(hold, greedy)) for _ in range(8)]
    try:
        assert await store.read(lambda _: "read", other) == "read"
        waiting = store._pool._queue.waiting(greedy)
        headers = {"authorization": f"Bearer {key}"}
        leaving = asyncio.create_task(
            router.http.get("/v1/conversations", headers=headers, timeout=patience(60))
        )
        await router.until(lambda: store._pool._queue.waiting(greedy) == waiting + 1, 30)
        leaving.cancel()
        await router.until(lambda: store._pool._queue.waiting(greedy) == waiting, 30)
    finally:
        end.set()
        await asyncio.gather(*held)


async def test_acts_of_administration_go_round_the_tenants(router: RunningRouter) -> None:
    tenancy = router.parts.tenancy
    begun, end = threading.Event(), threading.Event()
    order: list[str] = []

    def first(_: object) -> None:
        begun.set()
        end.wait(patience(60))

    tasks = [asyncio.create_task(tenancy.administer(first, "greedy"))]
    await asyncio.to_thread(begun.wait, patience(60))
    for tenant in ("greedy", "greedy", "greedy", "other"):
        act = partial(_note, order, tenant)
        tasks.append(asyncio.create_task(tenancy.administer(act, tenant)))
    await asyncio.sleep(0)
    end.set()
    await asyncio.gather(*tasks)
    assert order.index("other") < 2


def _note(order: list[str], tenant: str, _: object) -> None:
    order.append(tenant)
