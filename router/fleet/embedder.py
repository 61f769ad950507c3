"""A model that makes embeddings, on several servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.fleet.settings import FleetSettings
from router.fleet.single_calls import SingleCall, ask
from router.triton_embedder import TritonEmbedder

if TYPE_CHECKING:
    from router.embedder import EmbeddingAnswer, EmbeddingCall
    from router.fleet.replicas import ReplicaSet

_SETTINGS = FleetSettings()


class FleetEmbedder:
    """One release that makes embeddings, wherever it is loaded."""

    def __init__(self, replicas: ReplicaSet, settings: FleetSettings = _SETTINGS) -> None:
        self.replicas = replicas
        self._settings = settings
        self._entry = replicas.manifest.entry

    async def embed(self, call: EmbeddingCall, request_id: str, tenant: str) -> EmbeddingAnswer:
        async def make(connection: SingleCall) -> EmbeddingAnswer:
            return await TritonEmbedder(connection, self._entry).embed(call, request_id, tenant)

        return await ask(self.replicas, self._settings, call.most_tokens, make)

    async def ready(self) -> bool:
        return await self.replicas.ready()
