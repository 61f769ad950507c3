"""The models a client may name."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.checkpoint_facts import CONTEXT_TOKENS, SamplingDefaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from router.embedder import ServedEmbedder
    from router.pipeline import Pipeline
    from router.prompting import ChatTemplate


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    pipeline: Pipeline
    template: ChatTemplate | None = None
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    context_tokens: int = CONTEXT_TOKENS
    checkpoint_dir: Path | None = None
    created_s: int = field(default_factory=lambda: int(time.time()))


class Registry:
    """Names come from the settings; whatever else a client sends is not found, and goes no further."""

    def __init__(self, models: Iterable[ServedModel], embedders: Iterable[ServedEmbedder] = ()) -> None:
        self._models = {model.name: model for model in models}
        self._embedders = {model.name: model for model in embedders}

    def find(self, name: str) -> ServedModel:
        """One that generates text."""
        model = self._models.get(name)
        if model is None:
            self.find_any(name)
            message = f"The model '{name}' makes embeddings and no text; use /v1/embeddings"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "model")
        return model

    def find_embedder(self, name: str) -> ServedEmbedder:
        model = self._embedders.get(name)
        if model is None:
            self.find_any(name)
            known = " or ".join(f"'{other}'" for other in self._embedders)
            advice = f"ask {known} instead" if known else "no model for embeddings is served here"
            message = (
                f"The model '{name}' generates text, by /v1/chat/completions or /v1/completions, and makes "
                f"no embeddings; {advice}"
            )
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "model")
        return model

    def find_any(self, name: str) -> ServedModel | ServedEmbedder:
        model = self._models.get(name) or self._embedders.get(name)
        if model is None:
            shown = name if name.isprintable() and len(name) <= 64 else "that name"
            message = f"The model '{shown}' does not exist; GET /v1/models lists those that do"
            raise InflightError(ErrorKind.MODEL_NOT_FOUND, message, "model")
        return model

    @property
    def embedders(self) -> tuple[ServedEmbedder, ...]:
        return tuple(self._embedders.values())

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())
