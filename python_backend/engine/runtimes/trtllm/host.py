"""`tensorrt_llm.LLM` as the host of a conversation."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from python_backend.engine.runtimes.hosted.host import Asked, Unreadable
from python_backend.engine.runtimes.hosted.iterations import Iterations
from python_backend.engine.runtimes.hosted.news import News
from python_backend.engine.runtimes.trtllm.news import Reader
from python_backend.engine.runtimes.trtllm.statistics import note

_log = logging.getLogger("inflight.engine")


class LlmHost:
    title = "TensorRT-LLM"

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    async def follow(self, asked: Asked) -> AsyncIterator[News]:
        reader = Reader()
        asked.handle = result = self._llm.generate_async(**asked.arguments)
        is_over = False
        async for _ in result:
            news = _read(reader, result)
            is_over = news.is_last
            yield news
        if not is_over:
            news = _read(reader, result)
            news.is_last = True
            yield news

    async def abort(self, asked: Asked) -> None:
        if not asked.handle.finished:
            asked.handle.abort()

    async def listen(self, iterations: Iterations, period_s: float) -> None:
        while True:
            try:
                for told in await asyncio.to_thread(self._statistics):
                    note(iterations, json.loads(told) if isinstance(told, str) else told)
            except Exception as error:  # gauges alone depend on it
                _log.debug("TensorRT-LLM reported no iteration statistics: %s", error)
            await asyncio.sleep(period_s)

    def _statistics(self) -> list[Any]:
        """Where it computes in this process nobody passes them on to `get_stats`, and they are fetched."""
        executor: Any = getattr(self._llm, "_executor", None)
        if hasattr(executor, "fetch_stats"):
            return [executor._stats_serializer(each) for each in executor.fetch_stats()]
        found: list[Any] = self._llm.get_stats(timeout=0.5)
        return found

    def capacity(self) -> dict[str, int]:
        """How many blocks of how many tokens its cache has; empty where it does not say."""
        executor = getattr(self._llm, "_executor", None)
        for fetch in (
            getattr(executor, "fetch_kv_cache_capacity", None),
            getattr(self._llm, "get_kv_cache_capacity", None),
        ):
            told = fetch() if fetch is not None else None
            if told:
                found: dict[str, int] = json.loads(told) if isinstance(told, str) else dict(told)
                return found
        return {}

    async def drop_adapter(self, name: str) -> None:
        """Requests with one are refused, so that it has none."""

    async def failure(self) -> str | None:
        check = getattr(self._llm, "_check_health", None)  # NVIDIA's own server asks it the same
        if check is None or check():
            return None
        return "the health check of TensorRT-LLM failed"


def _read(reader: Reader, result: Any) -> News:
    try:
        return reader.read(result)
    except Exception as error:
        _log.exception("a result of TensorRT-LLM could not be read")
        raise Unreadable(f"its result could not be read: {type(error).__name__}: {error}") from error
