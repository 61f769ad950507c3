"""A router in a process of its own, as the launcher starts it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import soon

_START_LIMIT_S = 60.0


@dataclass
class StartedRouter:
    process: asyncio.subprocess.Process
    port: int
    log: list[str]


@asynccontextmanager
async def started_router(settings: Path) -> AsyncIterator[StartedRouter]:
    """Listening when the block begins; killed after it, if it has not ended by itself."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", "--settings", str(settings), stderr=asyncio.subprocess.PIPE
    )
    log: list[str] = []
    reading = asyncio.ensure_future(_read(process, log))
    try:
        yield StartedRouter(process, await soon(_port(log), _START_LIMIT_S), log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def _read(process: asyncio.subprocess.Process, log: list[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        log.append(line.decode())


async def _port(log: list[str]) -> int:
    while True:
        for line in log:
            if found := re.search(r"listening on https?://127\.0\.0\.1:(\d+)", line):
                return int(found[1])
        await asyncio.sleep(0.02)
