"""The model families the engine can run, by the architecture name in a checkpoint's `config.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from python_backend.engine.loader import Checkpoint
from python_backend.engine.models.llama import load_llama
from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from python_backend.engine.models.model import Model

FAMILIES: dict[str, Callable[[Checkpoint], Model]] = {"LlamaForCausalLM": load_llama}


def load_model(checkpoint: Checkpoint) -> Model:
    for architecture in checkpoint.architectures:
        if architecture in FAMILIES:
            return FAMILIES[architecture](checkpoint)
    named = " or ".join(checkpoint.architectures) or "model of no named architecture"
    raise InflightError(
        ErrorKind.UNSUPPORTED,
        f"{checkpoint.directory} is a {named}, which this engine does not know; "
        f"it knows {', '.join(sorted(FAMILIES))}",
    )
