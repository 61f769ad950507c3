"""Stands in for an embedding model: vectors that tell their text apart, and a hold on when they come."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from router.core.embedding import EmbeddingAnswer, EmbeddingCall, EmbeddingLimits

LIMITS = EmbeddingLimits(dimensions=8, vocabulary=1000, max_tokens=16)


def vector(row: str | list[int], dimensions: int) -> list[float]:
    """Exact in fp32, and other for other rows."""
    seed = sum(row.encode()) if isinstance(row, str) else sum(row)
    return [float(seed + place) for place in range(dimensions)]


class FakeEmbedder:
    """`held` keeps answers back while it is set; `fail` may name an error for a call."""

    def __init__(self) -> None:
        self.calls: list[EmbeddingCall] = []
        self.tenants: set[str] = set()
        self.under_way = 0
        self.most_under_way = 0
        self.cancelled = 0
        self.is_ready = True
        self.fail: Callable[[EmbeddingCall], Exception | None] = lambda call: None
        self.tokens: Callable[[str | list[int]], int] = lambda row: len(row) + 2
        self._released = asyncio.Event()
        self._released.set()

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    async def embed(self, call: EmbeddingCall, request_id: str, tenant: str) -> EmbeddingAnswer:
        self.calls.append(call)
        self.tenants.add(tenant)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            # Later ones answer first, so that order is somebody's merit.
            await asyncio.sleep(0.001 * (5 - self.under_way))
            await self._released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1
        if failure := self.fail(call):
            raise failure
        vectors = [vector(row, call.dimensions) for row in call.rows]
        raw = b"".join(struct.pack(f"<{len(each)}f", *each) for each in vectors)
        return EmbeddingAnswer(raw, [self.tokens(row) for row in call.rows])

    async def ready(self) -> bool:
        return self.is_ready


RERANKER_LIMITS = EmbeddingLimits(dimensions=1, vocabulary=1000, max_tokens=16, is_reranker=True)


class FakeReranker(FakeEmbedder):
    """The score of a pair is the part of its characters that both texts have."""

    async def embed(self, call: EmbeddingCall, request_id: str, tenant: str) -> EmbeddingAnswer:
        answer = await super().embed(call, request_id, tenant)
        scores = [likeness(str(first), second) for first, second in zip(call.rows, call.seconds, strict=True)]
        return EmbeddingAnswer(struct.pack(f"<{len(scores)}f", *scores), answer.tokens)


def likeness(first: str, second: str) -> float:
    """Exact in fp32."""
    return round(64 * len({*first} & {*second}) / len({*first} | {*second})) / 64
