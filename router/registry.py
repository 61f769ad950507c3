"""The models a client may name."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.sampling_defaults import SamplingDefaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from router.pipeline import Pipeline
    from router.prompting import ChatTemplate


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    pipeline: Pipeline
    template: ChatTemplate | None = None
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    created_s: int = field(default_factory=lambda: int(time.time()))


class Registry:
    """Names come from the settings; whatever else a client sends is not found, and goes no further."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = {model.name: model for model in models}

    def find(self, name: str) -> ServedModel:
        model = self._models.get(name)
        if model is None:
            shown = name if name.isprintable() and len(name) <= 64 else "that name"
            message = f"The model '{shown}' does not exist; GET /v1/models lists those that do"
            raise InflightError(ErrorKind.MODEL_NOT_FOUND, message, "model")
        return model

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())
