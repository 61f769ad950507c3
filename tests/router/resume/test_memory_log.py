"""Events in memory: numbered, bounded by tenant, and followed to their end."""

from __future__ import annotations

import asyncio

import pytest

from python_backend.wire.errors import InflightError
from router.resume.memory_log import LogLimits, MemoryEventLog


def data(*texts: str) -> list[bytes]:
    return [f"data: {text}\n\n".encode() for text in texts]


async def followed(log: MemoryEventLog, name: str, after: int = -1) -> list[bytes]:
    return [event async for some in await log.follow(name, after) for event in some]


async def test_the_log_gives_up_what_has_ended_first_and_stays_within_a_tenants_part() -> None:
    log = MemoryEventLog(LogLimits(bytes_per_tenant=4000))
    for name in ("old", "new"):
        sink = log.open("acme", name)
        sink.add(data("1", "2", "3"))
        sink.close()
    other = log.open("other", "theirs")
    other.add(data("1"))
    assert await followed(log, "old", 0) == data("2", "3")
    running = log.open("acme", "running")
    running.add(data("x" * 300))
    with pytest.raises(InflightError, match="no longer, stored"):
        await log.follow("old", -1)
    assert await followed(log, "new", 1) == data("3")
    running.add(data("x" * 3900))
    for gone in ("running", "new"):
        with pytest.raises(InflightError, match="no longer, stored"):
            await log.follow(gone, -1)
    other.close()
    assert await followed(log, "theirs") == data("1")


async def test_who_reads_an_answer_for_which_there_is_no_room_gets_all_of_it_and_nobody_later() -> None:
    log = MemoryEventLog(LogLimits(bytes_per_tenant=1300))
    sink = log.open("acme", "long")
    sink.add(data("1"))
    follower = await log.follow("long", -1)
    assert await anext(follower) == data("1")
    sink.add(data("x" * 300))
    sink.add(data("y"))
    assert await anext(follower) == data("x" * 300, "y")
    with pytest.raises(InflightError, match="no longer, stored"):
        await log.follow("long", -1)
    sink.add(data("z"))
    sink.close()
    assert [some async for some in follower] == [data("z")]


async def test_a_follower_of_events_that_are_deleted_is_told() -> None:
    log = MemoryEventLog()
    log.open("acme", "deleted").add(data("1"))
    follower = await log.follow("deleted", -1)
    assert await anext(follower) == data("1")
    waiting = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0)
    log.forget("deleted")
    with pytest.raises(InflightError, match="no longer, stored"):
        await waiting


async def test_the_log_forgets_after_a_while() -> None:
    now_s = 0.0
    log = MemoryEventLog(LogLimits(kept_s=10), clock=lambda: now_s)
    log.open("acme", "first").close()
    now_s = 11.0
    log.open("acme", "second")
    with pytest.raises(InflightError, match="no longer, stored"):
        await log.follow("first", -1)
