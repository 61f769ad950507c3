"""The conversation with a package: its words, its silence, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from python_backend.engine.runtimes.hosted.conversation import Conversation
from python_backend.engine.runtimes.hosted.host import Asked
from python_backend.engine.runtimes.hosted.iterations import Iterations
from python_backend.engine.runtimes.hosted.news import News
from tests.waiting import wait_until


class Mute:
    """Takes requests and never answers; it may still tell of its iterations."""

    title = "the package"

    def __init__(self, iterates: bool = False) -> None:
        self._iterates = iterates
        self.aborted: list[Asked] = []
        self.dropped: list[str] = []

    async def follow(self, asked: Asked) -> AsyncIterator[News]:
        asked.handle = asked
        await asyncio.Event().wait()
        yield News()

    async def abort(self, asked: Asked) -> None:
        self.aborted.append(asked)

    async def listen(self, iterations: Iterations, period_s: float) -> None:
        while True:
            iterations.count += self._iterates
            await asyncio.sleep(period_s)

    async def drop_adapter(self, name: str) -> None:
        self.dropped.append(name)
        raise RuntimeError("it keeps it")

    async def failure(self) -> str | None:
        return None


def test_a_package_that_says_nothing_while_it_is_busy_has_failed() -> None:
    conversation = Conversation(Mute(), 0.01, 0.1)
    conversation.ask({})
    wait_until(lambda: conversation.failure is not None)
    assert conversation.failure == "the package has not responded for 0 s"
    conversation.close()


def test_iterations_count_as_words() -> None:
    conversation = Conversation(Mute(iterates=True), 0.01, 1.0)
    conversation.ask({})
    wait_until(lambda: conversation.iterations.count > 5)
    assert conversation.failure is None
    conversation.close()


def test_closing_aborts_what_runs() -> None:
    host = Mute()
    conversation = Conversation(host, 0.01, 60)
    asked = conversation.ask({})
    wait_until(lambda: asked.handle is not None)
    conversation.close()
    assert host.aborted == [asked]


def test_a_package_that_does_not_give_an_adapter_back_goes_on() -> None:
    host = Mute()
    conversation = Conversation(host, 0.01, 60)
    conversation.drop_adapter("sql")
    asked = conversation.ask({})
    wait_until(lambda: asked.handle is not None)
    assert host.dropped == ["sql"]
    assert conversation.failure is None
    conversation.close()
