"""vLLM's `AsyncLLM` as the host of a conversation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from python_backend.engine.report import EngineBroken
from python_backend.engine.runtimes.hosted.host import Asked, Unreadable
from python_backend.engine.runtimes.hosted.iterations import Iterations
from python_backend.engine.runtimes.hosted.news import HostPerf, LogProbRow, News, log_prob_row
from python_backend.engine.runtimes.vllm.adapters import VllmAdapters
from python_backend.engine.runtimes.vllm.images import has_images, read_images
from python_backend.engine.runtimes.vllm.transfer import Transfers

_log = logging.getLogger("inflight.engine")


class VllmHost:
    title = "vLLM"

    def __init__(
        self,
        llm: Any,
        adapters: VllmAdapters | None = None,
        image_io: Any = None,
        transfers: Transfers | None = None,
    ) -> None:
        self._llm = llm
        self._adapters = adapters
        self._image_io = image_io
        self._transfers = transfers

    async def follow(self, asked: Asked) -> AsyncIterator[News]:
        arguments, image_tokens = asked.arguments, 0
        if has_images(prompt := arguments["prompt"]):
            rendered = await read_images(self._llm, self._image_io, prompt)
            if asked.is_aborted:  # meanwhile, before vLLM knew of it
                yield News(finish_reason="cancelled", is_last=True)
                return
            yield News()  # a sign of life: to read images is no iteration
            arguments = {**arguments, "prompt": rendered}
            image_tokens = len(rendered["prompt_token_ids"]) - len(prompt["prompt_token_ids"])
        asked.handle = arguments["request_id"]
        async for output in self._llm.generate(**arguments):
            news = _read(output)
            news.image_tokens = image_tokens
            if news.finish_reason == "error":
                raise EngineBroken("vLLM ended an answer with an internal error")
            if self._transfers is not None and news.is_last:
                news.context = self._transfers.told(output.kv_transfer_params)
            yield news

    async def abort(self, asked: Asked) -> None:
        await self._llm.abort(asked.handle)

    async def listen(self, iterations: Iterations, period_s: float) -> None:
        """It is told by `VllmStatistics`, as vLLM hears of them."""
        await asyncio.Event().wait()

    async def drop_adapter(self, name: str) -> None:
        for number in self._adapters.numbers_of(name) if self._adapters else ():
            if await self._llm.remove_lora(number):
                _log.info("vLLM has unloaded adapter %s", name)

    async def failure(self) -> str | None:
        return f"vLLM's engine core died: {self._llm.dead_error}" if self._llm.errored else None


def _read(output: Any) -> News:
    try:
        return read_output(output)
    except Exception as error:
        raise Unreadable(f"its result could not be read: {type(error).__name__}: {error}") from error


def read_output(output: Any) -> News:
    """One piece of an answer; what it says of the prompt comes with the first."""
    (answer,) = output.outputs
    ids = list(answer.token_ids)
    rows = list(answer.logprobs or ())
    return News(
        ids,
        [log_prob_row(token_id, row) for token_id, row in zip(ids, rows, strict=False)],
        answer.finish_reason,
        answer.stop_reason is not None,
        bool(output.finished),
        prompt_log_probs=_prompt_rows(output),
        perf=_perf(output.metrics) if output.finished else None,
        cached_tokens=output.num_cached_tokens or 0,
    )


def _prompt_rows(output: Any) -> list[LogProbRow]:
    """From the second token on: of the first there is no probability."""
    rows = list(output.prompt_logprobs or ())[1:]
    prompt = (output.prompt_token_ids or [])[1:]
    return [log_prob_row(token_id, row) for token_id, row in zip(prompt, rows, strict=False)]


def _perf(told: Any) -> HostPerf | None:
    """Its core's times are of the system's monotonic clock, as ours are."""
    if told is None:
        return None
    times = (told.scheduled_ts, told.first_token_ts, told.last_token_ts)
    scheduled, first, last = (round(each * 1e9) for each in times)
    return HostPerf(scheduled, first, last, preemptions=getattr(told, "num_preemptions", 0))
