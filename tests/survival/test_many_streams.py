"""Two thousand open streams in one router process; Triton is a stub that holds all of them back."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.router.pacing import Answer, Pacer
from benchmarks.router.tenant import make_tenant
from benchmarks.router.triton_stub import TritonStub
from benchmarks.router.words import word
from benchmarks.stack import free_port
from tests.pace import patience
from tests.waiting import until

STREAMS, TOKENS = 2000, 20
AT_ONCE = 200
MODEL = "held"
TEXT = "".join(word(number) for number in range(1, TOKENS + 1))


class Gate(Pacer):
    """Every answer gets its first token at once, and all others when the gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[Answer] = []

    def add(self, answer: Answer) -> None:
        answer.play(1)
        self._held.append(answer)

    def open(self) -> None:
        held, self._held = self._held, []
        for answer in held:
            answer.play(answer.total)


@dataclass
class HeldRouter:
    port: int
    key: str
    process: psutil.Process
    gate: Gate

    async def begin(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream whose first token has come."""
        body = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": TOKENS, "stream": True})
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.key}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write((head + body).encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        first = await reader.readuntil(b"}]}\n\n\r\n")
        assert json.dumps(word(1)).encode() in first
        return reader, writer

    async def begin_many(self, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        begun = []
        for _ in range(count // AT_ONCE):
            begun += await asyncio.gather(*(self.begin() for _ in range(AT_ONCE)))
        return begun

    async def finish(self, begun: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> list[str]:
        """The texts of all streams after the first token, each to its end."""
        self.gate.open()
        texts = []
        for reader, writer in begun:
            events = [line[6:] for line in (await reader.read()).split(b"\n") if line.startswith(b"data: ")]
            assert events.pop() == b"[DONE]"
            texts.append("".join(json.loads(event)["choices"][0]["text"] for event in events))
            writer.close()
        return texts


@asynccontextmanager
async def held_router(folder: Path) -> AsyncIterator[HeldRouter]:
    gate, port = Gate(), free_port()
    loop = asyncio.get_running_loop()
    triton = await loop.create_server(lambda: TritonStub(gate), "127.0.0.1", 0, backlog=4096)
    upstream = triton.sockets[0].getsockname()
    key = make_tenant(folder / "data", MODEL)
    settings = folder / "router.toml"
    settings.write_text(
        f'port = {port}\ngrpc_port = -1\ntriton_servers = [{{ url = "127.0.0.1:{upstream[1]}" }}]\n'
        f'data_dir = "{folder / "data"}"\n[[models]]\nname = "{MODEL}"\ncheckpoint_dir = "{folder}"\n'
    )
    with (folder / "log").open("wb") as log:
        command = (sys.executable, "-m", "router", "--settings", str(settings))
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        await until_live(port)
        yield HeldRouter(port, key, psutil.Process(process.pid), gate)
    finally:
        process.terminate()
        assert await process.wait() == 0
        triton.close()


async def until_live(port: int) -> None:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False, timeout=patience(30)
    ) as http:

        async def is_live() -> bool:
            try:
                return (await http.get("/health/live")).status_code == 200
            except httpx.TransportError:
                return False

        await until(is_live, "the router does not start")


async def test_two_thousand_streams_take_64_kb_each_and_lose_nothing(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    async with held_router(tmp_path) as router:
        await router.finish(await router.begin_many(AT_ONCE))
        before = router.process.memory_info().rss
        begun = await router.begin_many(STREAMS)
        per_stream = (router.process.memory_info().rss - before) / STREAMS
        texts = await router.finish(begun)
    assert texts == [TEXT.removeprefix(word(1))] * STREAMS
    figure(f"{STREAMS:,} streams, none lost, {per_stream / 1024:.0f} KB each; an hour was not run")
    assert per_stream <= 64 << 10
