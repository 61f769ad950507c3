"""A release's first requests: canonical prompts through one server, to see that it answers, and how fast."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from router.control.releases.inspection import scrub
from router.control.releases.own_prompt import SENTENCE, TENANT, ask
from router.core.embedding import EmbeddingCall
from router.core.manifest import Kind
from router.routing.checkpoint import load_limits
from router.triton.client import TritonPipeline
from router.triton.embeddings import TritonEmbedder
from router.triton.failures import TritonError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from router.control.releases.own_prompt import Answer, Generates
    from router.control.releases.ports import Server
    from router.core.embedding import Embedder
    from router.core.manifest import Manifest

# Of different lengths: a prompt of one step, one of a few, and one that is read in pieces.
PROMPTS = ("The capital of France is", f"{SENTENCE * 4}In short, the", f"{SENTENCE * 24}And then the")
TEXTS = ("hello", SENTENCE, SENTENCE * 12)
_MAX_TOKENS = 16
_TIMEOUT_S = 120.0


class WarmingFailed(Exception):
    """The release does not answer as a model does; the message is for people."""


async def warm_text(
    pipeline: Generates, timeout_s: float = _TIMEOUT_S, clock: Callable[[], float] = time.monotonic
) -> dict[str, float]:
    """Its profile; raises WarmingFailed where a prompt fails or none gets any text."""
    answers = []
    for prompt in PROMPTS:
        try:
            answers.append(await ask(pipeline, prompt, _MAX_TOKENS, timeout_s, clock=clock))
        except asyncio.TimeoutError:
            raise WarmingFailed(f"a canonical prompt was not answered within {timeout_s:g} s") from None
        except InflightError as error:
            # A model may be too small for the long ones; the first fits all.
            if not (answers and error.kind is ErrorKind.CONTEXT_LENGTH_EXCEEDED):
                raise WarmingFailed(f"a canonical prompt failed: {_said(error)}") from error
    if not any(answer.tokens and answer.text.strip() for answer in answers):
        raise WarmingFailed(f"all {len(answers)} canonical prompts got an empty answer")
    return _profile(answers)


def _said(error: InflightError) -> str:
    """The model's own error message, where there is one: it is meant for its owner."""
    return scrub(error.said if isinstance(error, TritonError) else error.message)


def _profile(answers: Sequence[Answer]) -> dict[str, float]:
    """The first prompt has paid for what is done once; the later ones are what others will see."""
    later = answers[1:] or answers
    decode_s = sum(answer.whole_s - answer.first_token_s for answer in later)
    decoded = sum(max(answer.tokens - 1, 0) for answer in later)
    profile = {"first_token_s": min(answer.first_token_s for answer in later)}
    if decoded and decode_s > 0:
        profile["tokens_per_s"] = decoded / decode_s
    return profile


async def warm_embeddings(
    embedder: Embedder,
    dimensions: int,
    timeout_s: float = _TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, float]:
    """Its profile; raises WarmingFailed for a call that fails, and for vectors that are none."""
    quickest_s = math.inf
    for text in TEXTS:
        began_s = clock()
        call = EmbeddingCall([text], dimensions, len(text))
        try:
            answer = await asyncio.wait_for(
                embedder.embed(call, f"warm-{secrets.token_hex(8)}", TENANT), timeout_s
            )
        except asyncio.TimeoutError:
            raise WarmingFailed(f"a canonical text was not embedded within {timeout_s:g} s") from None
        except InflightError as error:
            raise WarmingFailed(f"a canonical text failed: {_said(error)}") from error
        quickest_s = min(quickest_s, clock() - began_s)
        vector = codec.decode("FP32", answer.vectors)
        if len(vector) != dimensions or not all(map(math.isfinite, vector)) or not any(vector):
            raise WarmingFailed("the vector of a canonical text contains numbers that are not finite")
    return {"first_token_s": quickest_s}


async def warm_tensors(is_ready: Callable[[], Awaitable[bool]]) -> dict[str, float]:
    """What it takes is its author's to know: that Triton would take a request must do."""
    if not await is_ready():
        raise WarmingFailed("Triton does not accept requests for it")
    return {}


async def warm_release(server: Server, manifest: Manifest) -> dict[str, float]:
    """Through this server alone."""
    connection = server.connection
    if manifest.kind is Kind.TEXT:
        return await warm_text(TritonPipeline(connection, manifest.entry, manifest.engine, manifest.adapter))
    if manifest.kind is Kind.EMBEDDINGS:
        limits = await asyncio.to_thread(load_limits, Path(manifest.checkpoint_dir))
        return await warm_embeddings(TritonEmbedder(connection, manifest.entry), limits.dimensions)
    return await warm_tensors(partial(connection.ready, manifest.entry))
