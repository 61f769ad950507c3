"""A client that sends exactly the bytes it is given."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from tests.router.running import MODEL, QUESTION
from tests.waiting import soon


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class RawClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seen: bytes = field(default=b"")

    @classmethod
    async def connect(cls, port: int) -> RawClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader, writer)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_until(self, mark: bytes) -> bytes:
        return await soon(self.reader.readuntil(mark))

    async def reply(self) -> Reply:
        head = (await self.read_until(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers.get("content-length", "0"))
        body = await soon(self.reader.readexactly(length))
        return Reply(int(first.split()[1]), headers, body)

    async def closed(self) -> bool:
        """Whether the server closes the connection, after nothing more."""
        try:
            return await soon(self.reader.read(1)) == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


def chat_request(**fields: object) -> bytes:
    return post("/v1/chat/completions", {"model": MODEL, "messages": QUESTION, **fields})


def post(path: str, value: object, *headers: str) -> bytes:
    body = json.dumps(value).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
