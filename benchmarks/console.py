"""What the console costs: bytes to load, time to the first paint, and the router's processor for viewers.

Usage: python -m benchmarks.console [VIEWERS]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.router.contestants import INFLIGHT, Stubs
from benchmarks.router.processes import LOAD_CORE, running
from benchmarks.stack import free_port
from router.console.pages import static_files
from router.core.tenant import Role, Scope
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration
from tests.chromium import chromium

if TYPE_CHECKING:
    from benchmarks.router.processes import Costs

VIEWERS = 100
_SECONDS = 15.0
_ROUNDS = 3
_LOADS = 5
_ASK = "GET /admin/now/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n"
_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def admin_key(data_dir: Path) -> str:
    """Of somebody who may look; the router knows it within a second."""
    with open_administration(data_dir) as admin:
        made = admin.create_organisation(SYSTEM, "watchers")
        user = admin.create_user(SYSTEM, made.id, "watcher", Role.OWNER, platform_admin=True)
        return admin.create_key(SYSTEM, made.id, user.id, "watcher", frozenset(Scope))[1]


async def watch(port: int, key: str) -> int:
    """One viewer; how many snapshots it was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(_ASK.format(key).encode())
    seen = 0
    try:
        while line := await reader.readline():
            seen += line.startswith(b"data: ")
    except asyncio.CancelledError:
        writer.close()
    return seen


async def use_of_a_core(costs: Costs) -> float:
    start_s = costs.cpu_s()
    await asyncio.sleep(_SECONDS)
    return (costs.cpu_s() - start_s) / _SECONDS


async def measure_viewers(port: int, key: str, costs: Costs, viewers: int) -> tuple[float, float, int]:
    """The router's part of a core without and with viewers, and the fewest snapshots that one got."""
    without = await use_of_a_core(costs)
    watching = [asyncio.ensure_future(watch(port, key)) for _ in range(viewers)]
    await asyncio.sleep(2.0)
    with_them = await use_of_a_core(costs)
    for each in watching:
        each.cancel()
    seen = await asyncio.gather(*watching)
    return without, with_them, min(seen)


async def measure_paint(url: str) -> tuple[float, float]:
    """Milliseconds to the first paint: of a browser that was never here, and of one that was."""
    first: list[float] = []
    again: list[float] = []
    async with chromium(url) as browser:
        for _ in range(_LOADS):
            watched = await browser.new_page()
            for times in (first, again):
                await watched.page.goto(f"{url}/ui")
                await watched.page.wait_for_selector("main")
                times.append(float(await watched.page.evaluate(_FIRST_PAINT)))
            await watched.page.context.close()
    return statistics.median(first), statistics.median(again)


def main(viewers: int = VIEWERS) -> None:
    table = Table("", "", title="The console")
    _, files = static_files()
    table.add_row(
        "all files, compressed", f"{sum(len(each.packed) for each in files.values()) / 1000:.0f} KB"
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inflight-")))
        stubs = Stubs(0, free_port())
        command = [sys.executable, "-m", "benchmarks.router.triton_stub", str(stubs.triton_port)]
        stack.enter_context(running(command, LOAD_CORE, folder / "stub.txt"))
        target, costs = stack.enter_context(INFLIGHT.serving(stubs, folder / "router"))
        key = admin_key(folder / "router" / "data")
        rounds = [asyncio.run(measure_viewers(target.port, key, costs, viewers)) for _ in range(_ROUNDS)]
        first_ms, again_ms = asyncio.run(measure_paint(f"http://127.0.0.1:{target.port}"))
    table.add_row("first paint, nothing cached", f"{first_ms:.0f} ms")
    table.add_row("first paint, cached", f"{again_ms:.0f} ms")
    without, with_them = (statistics.median(each) for each in list(zip(*rounds, strict=True))[:2])
    table.add_row("router without viewers", f"{without:.2%} of a core")
    table.add_row(f"router with {viewers} viewers", f"{with_them:.2%} of a core")
    table.add_row("least snapshots that a viewer got", str(min(each[2] for each in rounds)))
    Console(width=100).print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
