"""A router with a batch runner, and batches for it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
from openai.types import Batch

from router.content.batches.runner import BatchRunner, BatchSettings
from router.store.database import StoreAccess
from tests.pace import is_over, patience
from tests.router.running import MODEL, QUESTION, RunningRouter

CHAT = "/v1/chat/completions"
QUICK = BatchSettings(concurrency=4, lease_s=patience(5.0), poll_s=0.02)
OVER = ("failed", "completed", "expired", "cancelled")


def request(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    fields = {"model": MODEL, "messages": QUESTION} if url == CHAT else {"model": MODEL}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {**fields, **body}}


def jsonl(requests: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in requests)


@dataclass
class BatchClient:
    """The official client, and what users write around it."""

    openai: openai.AsyncOpenAI

    async def upload(self, content: bytes) -> str:
        uploaded = await self.openai.files.create(file=("in.jsonl", content), purpose="batch")
        file_id: str = uploaded.id
        return file_id

    async def make(self, content: bytes, endpoint: Any = CHAT) -> Batch:
        return await self.openai.batches.create(
            input_file_id=await self.upload(content), endpoint=endpoint, completion_window="24h"
        )

    async def until_over(self, batch: Batch, limit_s: float = 30.0) -> Batch:
        began_s = time.monotonic()
        while batch.status not in OVER:
            assert not is_over(began_s, limit_s), batch
            await asyncio.sleep(0.02)
            batch = await self.openai.batches.retrieve(batch.id)
        return batch

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        content = await self.openai.files.content(file_id)
        return [json.loads(line) for line in content.text.splitlines()]


@asynccontextmanager
async def batch_client(router: RunningRouter, api_key: str = "none") -> AsyncIterator[BatchClient]:
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=api_key, max_retries=0) as client:
        yield BatchClient(client)


def new_runner(
    router: RunningRouter, store: StoreAccess | None = None, settings: BatchSettings = QUICK
) -> BatchRunner:
    parts = router.parts
    return BatchRunner(store or parts.store, parts.models, parts.tenancy.keyring, router.app, settings)


@asynccontextmanager
async def batch_runner(router: RunningRouter, settings: BatchSettings = QUICK) -> AsyncIterator[BatchRunner]:
    runner = new_runner(router, settings=settings)
    await runner.start()
    try:
        yield runner
    finally:
        await runner.stop(grace_s=patience(1.0))
