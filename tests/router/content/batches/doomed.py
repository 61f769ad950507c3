"""A router that answers the first half of a batch and hangs on the rest, until somebody kills it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import uvloop

from tests.fakes.pipeline import words
from tests.router.content.batches.running import QUICK, batch_client, batch_runner, jsonl, request
from tests.router.running import running_router

COUNT = 20
ANSWERED = 10


async def main(data_dir: Path) -> None:
    settings = replace(QUICK, lease_s=1.0)
    async with (
        running_router(data_dir=data_dir) as router,
        batch_client(router) as client,
        batch_runner(router, settings),
    ):
        router.pipeline.script = lambda call: words("x") if call.seed < ANSWERED else [None]
        batch = await client.make(jsonl([request(f"r{n}", seed=n) for n in range(COUNT)]))

        async def completed() -> int:
            counts = (await client.openai.batches.retrieve(batch.id)).request_counts
            return 0 if counts is None else counts.completed

        await router.until_async(completed, ANSWERED)
        await router.until(lambda: len(router.pipeline.calls) == ANSWERED + settings.concurrency)
        print(batch.id, flush=True)
        await asyncio.sleep(60)


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main(Path(sys.argv[1])))
