"""The port between the router and whatever turns texts into vectors."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

# So many calls of one request are under way at once: enough to fill a batch, few enough for others.
CALLS_AT_ONCE = 4
TokenIds = list[int]


class EmbeddingLimits(msgspec.Struct, frozen=True):
    """What one model takes and gives; a text is cut at `max_tokens`.

    A reranker scores texts and pairs of them. `prompts`, by their names, are what texts begin with;
    `default_prompt` is the name of the one for texts of which nothing is said.
    """

    dimensions: int
    vocabulary: int
    max_tokens: int
    is_reranker: bool = False
    prompts: dict[str, str] = {}
    default_prompt: str = ""

    def prompted(self, text: str, name: str) -> str:
        """With that prompt; with the usual one where the model has none of this name."""
        return self.prompts.get(name, self.prompts.get(self.default_prompt, "")) + text


class EmbeddingCall(msgspec.Struct, frozen=True):
    """One request to the model: texts or token ids, a row each; a reranker may get a pair in each row."""

    rows: list[str] | list[TokenIds]
    dimensions: int
    most_tokens: int  # what it can come to, to be reserved before it is sent
    seconds: list[str] = []  # the other text of each pair


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


SPECIAL_TOKENS = 2  # around each text
