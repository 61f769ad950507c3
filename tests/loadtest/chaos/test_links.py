"""A link carries what is sent, and can be broken and slowed down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadtest.chaos.links import Address, Link


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(1024):
        writer.write(piece)
    writer.close()


@asynccontextmanager
async def linked(at: Address) -> AsyncIterator[tuple[Link, Address]]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    link = Link(Address(port=server.sockets[0].getsockname()[1]))
    try:
        yield link, await link.listen(at)
    finally:
        await link.close()
        server.close()


async def connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.path:
        return await asyncio.open_unix_connection(address.path)
    return await asyncio.open_connection("127.0.0.1", address.port)


@pytest.mark.parametrize("kind", ["port", "socket"])
async def test_a_link_carries_both_directions_until_it_is_dropped(kind: str, tmp_path: Path) -> None:
    async with linked(Address(path=str(tmp_path / "s")) if kind == "socket" else Address()) as (
        link,
        address,
    ):
        reader, writer = await connect(address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert link.drop() == 2  # both ends of one connection
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        again, other = await connect(address)
        other.write(b"again")
        assert await again.readexactly(5) == b"again"
        for each in (writer, other):
            each.close()


async def test_a_delay_holds_up_what_is_sent() -> None:
    async with linked(Address()) as (link, address):
        reader, writer = await connect(address)
        link.delay_s = 0.2
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        writer.write(b"slow")
        await reader.readexactly(4)
        assert loop.time() - began_s >= 2 * link.delay_s
        writer.close()


async def test_who_connects_while_nobody_listens_behind_is_disconnected() -> None:
    link = Link(Address(path="/nowhere"))
    reader, writer = await connect(await link.listen(Address()))
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    await link.close()
