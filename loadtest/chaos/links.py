"""A small proxy on a port or a Unix socket, whose connections can be broken or slowed down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Address:
    """A port of this machine, or the path of a socket."""

    port: int = 0
    path: str = ""


class Link:
    """`delay_s` holds up every piece in both directions from now on."""

    def __init__(self, to: Address) -> None:
        self.delay_s = 0.0
        self._to = to
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, at: Address) -> Address:
        """Where clients connect; port 0 is any free one."""
        if at.path:
            self._server = await asyncio.start_unix_server(self._take, at.path)
            return at
        self._server = await asyncio.start_server(self._take, "127.0.0.1", at.port)
        return Address(port=self._server.sockets[0].getsockname()[1])

    def drop(self) -> int:
        """Breaks all connections, as a network does: without a word."""
        count = len(self._open)
        for writer in list(self._open):
            writer.transport.abort()
        return count

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._to.path:
                there = await asyncio.open_unix_connection(self._to.path)
            else:
                there = await asyncio.open_connection("127.0.0.1", self._to.port)
        except OSError:  # nobody listens there at the moment: who asks learns it as without a proxy
            writer.transport.abort()
            return
        self._open |= {writer, there[1]}
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while piece := await source.read(_PIECE_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                sink.write(piece)
                await sink.drain()
        except OSError:
            sink.transport.abort()
        finally:
            self._open.discard(sink)
            sink.close()
