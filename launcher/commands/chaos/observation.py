"""What there is to see of a stack: processes, files, metrics, and what the store has billed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import psutil
import sqlalchemy as sql

from launcher.commands.chaos.arena import BUDGET, POOR
from loadtest.chaos.sheet import Condition, Money
from router.store.schema import usage

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from launcher.commands.chaos.arena import Arena
    from router.store.database import Store

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"


class NotThere(Exception):
    """Something that must answer does not."""


@dataclass(frozen=True)
class Observer:
    arena: Arena
    store: Store
    session: aiohttp.ClientSession

    async def condition(self, left_regions: int = 0) -> Condition:
        """Raises NotThere while routers or Triton servers do not answer."""
        pages = await asyncio.gather(*(self._page(f"{url}/metrics") for url in self.arena.doors))
        engines = await asyncio.gather(*(self._page(url) for url in self.arena.metrics_urls))
        kinds = self.arena.by_kind()
        routers = sorted(kinds["router"], key=lambda each: each.pid)
        files = {}
        for number, router in enumerate(routers):
            with suppress(psutil.Error):
                files[f"router {number}"] = router.num_fds()
        return Condition(
            processes=self.arena.counts(),
            stopped=sum(_is_stopped(each) for each in self.arena.processes()),
            files=files,
            regions=self.arena.regions(),
            left_regions=left_regions,
            in_flight=sum(_sum(page, "inflight_requests_in_flight") for page in pages),
            used_blocks=sum(_sum(page, _BLOCKS, 'kv_cache_block_type="used"') for page in engines),
            replicas_up=sum(_sum(page, "inflight_replica_up", self.arena.model) for page in pages),
            spool_files=self.arena.spool_files(),
        )

    def money(self, known: AbstractSet[str]) -> Money:
        """What was billed beside what is known."""
        with self.store.read() as connection:
            rows = connection.execute(sql.select(usage.c.request_id, usage.c.completion_tokens)).all()
            spent = connection.scalar(
                sql.select(sql.func.coalesce(sql.func.sum(usage.c.cost), 0)).where(
                    usage.c.organisation_id == self.arena.tenants[POOR]
                )
            )
        billed = {row.request_id: int(row.completion_tokens) for row in rows if row.request_id not in known}
        return Money(billed, int(spent or 0), BUDGET)

    async def _page(self, url: str) -> str:
        try:
            async with self.session.get(url, timeout=_TIMEOUT) as response:
                return await response.text()
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise NotThere(f"{url} does not answer: {error}") from error


def _sum(page: str, family: str, label: str = "") -> float:
    lines = (line for line in page.splitlines() if line.startswith(f"{family}{{") and label in line)
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _is_stopped(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False
