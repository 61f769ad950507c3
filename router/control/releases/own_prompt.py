"""One prompt of the router itself, sent to one release and read to its end."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from python_backend.wire.tiers import Tier
from router.core.generation import GenerationCall, unmarked

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.core.generation import Generation
    from router.core.stages import EngineTimes

# As the engine sees it, where every request has a tenant.
TENANT = "inflight"
SENTENCE = "The quick brown fox jumps over the lazy dog while the river runs slowly to the sea. "


class Generates(Protocol):
    """What is used of a pipeline."""

    def generate(self, call: GenerationCall) -> Generation:
        """Starts nothing until the first delta is asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    tokens: int
    first_token_s: float
    whole_s: float
    decode_s: float  # from the first token to the last, by the engine's clock where it tells
    cached_tokens: int = 0  # of the prompt
    is_cut: bool = False  # at its most tokens

    @property
    def between_tokens_s(self) -> float | None:
        return self.decode_s / (self.tokens - 1) if self.tokens > 1 else None


async def ask(
    pipeline: Generates,
    prompt: str,
    max_tokens: int,
    timeout_s: float,
    *,
    add_special_tokens: bool = True,
    tier: Tier = Tier.STANDARD,
    ignore_eos: bool = False,
    on_first_token: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Answer:
    """Greedy, so that the same release says the same; raises InflightError and asyncio.TimeoutError."""
    text, marked = unmarked(prompt)
    call = GenerationCall(
        request_id=f"{TENANT}-{secrets.token_hex(8)}",
        prompt=text,
        marked_prompt=marked,
        max_tokens=max_tokens,
        seed=0,
        tenant=TENANT,
        top_k=1,
        add_special_tokens=add_special_tokens,
        tier=None if tier is Tier.STANDARD else tier.label,
        ignore_eos=ignore_eos,
    )
    generation = pipeline.generate(call)
    began_s = clock()
    first_s: float | None = None
    texts: list[str] = []
    tokens = cached_tokens = 0
    engine: EngineTimes | None = None
    finish: str | None = None

    async def read() -> None:
        nonlocal first_s, tokens, cached_tokens, engine, finish
        async for delta in generation:
            if first_s is None and delta.completion_tokens:
                first_s = clock()
                on_first_token()
            texts.append(delta.text)
            tokens += delta.completion_tokens
            cached_tokens += delta.cached_tokens
            engine = delta.engine or engine
            finish = delta.finish

    try:
        await asyncio.wait_for(read(), timeout_s)
    except BaseException:
        generation.stop()  # nobody reads on: the engine need not either
        raise
    ended_s = clock()
    first_s = ended_s if first_s is None else first_s
    decode_s = ended_s - first_s if engine is None else engine.last_token_s - engine.first_token_s
    took_s = (first_s - began_s, ended_s - began_s, decode_s)
    return Answer("".join(texts), tokens, *took_s, cached_tokens, is_cut=finish == "length")
