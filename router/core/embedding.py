"""The port between the router and whatever turns texts into vectors."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# So many calls of one request are under way at once: enough to fill a batch, few enough for others.
CALLS_AT_ONCE = 4
# Small enough for others to get in between, large enough for the calls of a long list to be few.
ROWS_PER_CALL = 16
TOKENS_PER_CALL = 512
SPECIAL_TOKENS = 2  # around each text
TokenIds = list[int]


class EmbeddingLimits(msgspec.Struct, frozen=True):
    """What one model takes and gives; a text is cut at `max_tokens`.

    A reranker scores texts and pairs of them. `frame_tokens` is what the model itself puts around a text, or
    a pair, at most. `prompts`, by their names, are what texts begin with;
    `default_prompt` is the name of the one for texts of which nothing is said.
    """

    dimensions: int
    vocabulary: int
    max_tokens: int
    is_reranker: bool = False
    prompts: dict[str, str] = {}
    default_prompt: str = ""
    frame_tokens: int = SPECIAL_TOKENS

    def prompted(self, text: str, name: str) -> str:
        """With that prompt; with the usual one where the model has none of this name."""
        return self.prompts.get(name, self.prompts.get(self.default_prompt, "")) + text


class EmbeddingCall(msgspec.Struct, frozen=True):
    """One request to the model: texts or token ids, a row each; a reranker may get a pair in each row."""

    rows: list[str] | list[TokenIds]
    dimensions: int
    most_tokens: int  # what it can come to, to be reserved before it is sent
    seconds: list[str] = []  # the other text of each pair
    first: int = 0  # which row of the whole request its first one is


def calls_of(tokens: Sequence[int], most_rows: int = ROWS_PER_CALL) -> Iterator[slice]:
    """Rows of about so many tokens each, cut into calls: a few long texts take as long as many short ones."""
    start = held = 0
    for row, size in enumerate(tokens):
        if row > start and (row - start >= most_rows or held + size > TOKENS_PER_CALL):
            yield slice(start, row)
            start, held = row, 0
        held += size
    if start < len(tokens):
        yield slice(start, len(tokens))


class EmbeddingAnswer(msgspec.Struct, frozen=True):
    """What the model says to one call: vectors in little-endian fp32, end to end, and tokens of each row."""

    vectors: bytes
    tokens: list[int]
    lost_attempts: int = 0  # how often its release failed it before


class Embedder(Protocol):
    """One model that makes embeddings."""

    async def embed(self, call: EmbeddingCall, request_id: str, tenant: str) -> EmbeddingAnswer:
        """Raises InflightError when the call fails; a cancelled one leaves nothing behind."""

    async def ready(self) -> bool:
        """Whether a call made now would be answered."""


@dataclass(frozen=True, slots=True)
class ServedEmbedder:
    name: str
    embedder: Embedder
    limits: EmbeddingLimits
    created_s: int = field(default_factory=lambda: int(time.time()))
    version: int = 1
    triton_name: str = "embeddings"

    async def ready(self) -> bool:
        return await self.embedder.ready()
