from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from python_backend.wire.errors import InflightError
from router.kserve.calls import Departure, Outbox, Stream
from tests.pace import patience


class StuckContext:
    """A client that does not read."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    async def write(self, message: Any) -> None:
        self.written.append(message)
        await asyncio.Event().wait()


async def forever() -> AsyncIterator[Any]:
    yield "request"
    await asyncio.Event().wait()


async def test_a_client_that_does_not_read_is_treated_as_disconnected() -> None:
    left = asyncio.Event()

    async def answer(outbox: Outbox, departure: Departure) -> None:
        departure.on_leave(left.set)
        for number in range(100):
            await outbox.put(number)

    async def start(request: Any, outbox: Outbox, departure: Departure) -> asyncio.Task[None]:
        return asyncio.ensure_future(answer(outbox, departure))

    context = StuckContext()
    with pytest.raises(InflightError, match=r"read nothing for 0\.05 s"):
        await Stream(start, context, send_timeout_s=0.05).serve(forever())
    assert left.is_set()
    assert context.written == [0]
    others = asyncio.all_tasks() - {asyncio.current_task()}
    _, waiting = await asyncio.wait(others, timeout=patience(10))
    assert not waiting, "nobody waits for room in an outbox that is closed"


async def test_an_outbox_holds_senders_back_until_there_is_room() -> None:
    outbox = Outbox(2)
    sending = asyncio.ensure_future(_put_all(outbox, 5))
    await asyncio.sleep(0)
    assert not sending.done()
    assert [await outbox.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    await sending
    outbox.close()
    assert await outbox.get() is None


async def _put_all(outbox: Outbox, count: int) -> None:
    for number in range(count):
        await outbox.put(number)


async def test_a_listener_added_after_the_disconnect_is_called_at_once() -> None:
    told: list[int] = []
    departure = Departure()
    departure.on_leave(lambda: told.append(1))
    departure.leave()
    departure.on_leave(lambda: told.append(2))
    departure.leave()
    assert told == [1, 2]
