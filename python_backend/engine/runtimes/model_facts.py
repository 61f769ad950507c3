"""What a model is, from its configuration alone."""

from __future__ import annotations

import json
from pathlib import Path

from python_backend.engine.formats import scheme_of
from python_backend.engine.runtimes.declaration import ModelFacts
from python_backend.wire.errors import InflightError


def read_model(path: str) -> ModelFacts:
    """Nothing is known of what cannot be read: whoever loads it says why."""
    place = Path(path)
    if place.suffix == ".gguf":
        return ModelFacts(place.is_file(), "gguf")
    try:
        config = json.loads((place / "config.json").read_text())
        quantization = config.get("quantization_config") or {}
        try:
            scheme, unreadable = scheme_of(config), None
        except InflightError as error:
            scheme, unreadable = None, error.message
        return ModelFacts(
            True,
            "safetensors",
            tuple(config.get("architectures") or ()),
            scheme.label if scheme else str(quantization.get("quant_method")) if unreadable else None,
            unreadable,
            "vision_config" in config,
        )
    except (OSError, ValueError, AttributeError, TypeError):
        return ModelFacts()
