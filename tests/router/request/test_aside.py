from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator

import pytest

from router.request.aside import Aside
from tests.pace import patience
from tests.waiting import soon, until


class Work:
    """Holds the thread until it is let go, and notes in which order tenants had it."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.may_end = threading.Event()

    def do(self, tenant: str) -> str:
        assert self.may_end.wait(patience(30))
        self.order.append(tenant)
        return tenant


@pytest.fixture
async def aside() -> AsyncIterator[Aside]:
    opened = Aside()
    yield opened
    opened.close()


def asked(aside: Aside, work: Work, *tenants: str) -> list[asyncio.Task[str]]:
    return [asyncio.ensure_future(aside.run(tenant, work.do, tenant)) for tenant in tenants]


async def test_work_is_done_by_another_thread_and_its_errors_come_back(aside: Aside) -> None:
    assert await aside.run("a", threading.get_ident) != threading.get_ident()
    with pytest.raises(ValueError, match="invalid literal"):
        await aside.run("a", int, "x")
    assert await aside.run("a", int, "7") == 7


async def test_a_tenant_with_much_work_keeps_others_waiting_for_one_piece_of_it(aside: Aside) -> None:
    work = Work()
    tasks = asked(aside, work, *["greedy"] * 6, "b", "c", "b")
    await asyncio.sleep(0)
    work.may_end.set()
    await asyncio.gather(*tasks)
    assert work.order == ["greedy", "greedy", "b", "c", "greedy", "b", "greedy", "greedy", "greedy"]


async def test_who_leaves_while_waiting_or_working_gives_the_turn_on(aside: Aside) -> None:
    work = Work()
    working, waiting, last = asked(aside, work, "a", "b", "c")
    await asyncio.sleep(0)
    waiting.cancel()
    working.cancel()
    work.may_end.set()
    assert await last == "c"
    assert await aside.run("d", int, "1") == 1
    assert waiting.cancelled()
    assert working.cancelled()


async def test_who_leaves_at_the_moment_of_the_turn_gives_it_on(aside: Aside) -> None:
    work = Work()
    work.may_end.set()
    first, second = asked(aside, work, "a", "b")
    await first
    second.cancel()
    await asyncio.wait([second])
    assert await soon(aside.run("c", int, "1")) == 1


class Body:
    """Stands for a large one; unlike bytes it can be asked whether it is still there."""


async def test_a_refused_body_is_not_kept_by_its_refusal(aside: Aside) -> None:
    def refuse(body: Body) -> None:
        raise ValueError(body)

    body = Body()
    kept = weakref.ref(body)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="Body"):
            await aside.run("acme", refuse, body)
        del body
        await until(lambda: kept() is None, "only the garbage collector would find it")
    finally:
        gc.enable()
