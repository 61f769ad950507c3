"""What a model is, from its configuration alone."""

from __future__ import annotations

import json
from pathlib import Path

from python_backend.engine.runtimes.declaration import ModelFacts


def read_model(path: str) -> ModelFacts:
    """Nothing is known of what cannot be read: whoever loads it says why."""
    place = Path(path)
    if place.suffix == ".gguf":
        return ModelFacts(place.is_file(), "gguf")
    try:
        config = json.loads((place / "config.json").read_text())
        quantization = config.get("quantization_config") or {}
        return ModelFacts(
            True,
            "safetensors",
            tuple(config.get("architectures") or ()),
            str(quantization.get("quant_method", "unnamed")) if quantization else None,
            "vision_config" in config,
        )
    except (OSError, ValueError, AttributeError, TypeError):
        return ModelFacts()
