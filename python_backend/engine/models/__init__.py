"""The model families the engine can run, by the architecture name in a checkpoint's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_backend.engine.models.config import Config, unsupported
from python_backend.engine.models.families import FAMILIES
from python_backend.engine.models.reader import CheckpointWeights
from python_backend.engine.models.text_tower import TextTower
from python_backend.wire.parameters import refusal

if TYPE_CHECKING:
    from python_backend.engine.checkpoint import TensorStore
    from python_backend.engine.models.decoder import DecoderShape, DecoderWeights

__all__ = ["FAMILIES", "load_weights", "longest_sequence"]


def load_weights(checkpoint: TensorStore, max_sequence_tokens: int | None = None) -> DecoderWeights:
    """Reads the configuration alone; tensors are read when the weights are asked for them.

    `max_sequence_tokens` is how long sequences are meant to become; it matters to models that turn
    differently for long ones (longrope).
    """
    for architecture in checkpoint.architectures:
        if architecture in FAMILIES:
            family = FAMILIES[architecture]
            store = checkpoint if family.text_type is None else TextTower(checkpoint, family.text_type)
            blueprint = family.blueprint(Config(store.config, family.assumed, max_sequence_tokens))
            return CheckpointWeights(store, blueprint.shape, blueprint.layout)
    named = " or ".join(checkpoint.architectures) or "model of an unnamed architecture"
    raise unsupported(
        f"{checkpoint.path} is a {named}, which this engine does not support; "
        f"supported: {', '.join(sorted(FAMILIES))}"
    )


def longest_sequence(shape: DecoderShape, wanted: int | None) -> int:
    """How long sequences may become: as long as was asked for, or as long as the model can."""
    if wanted is not None and wanted > shape.max_positions:
        allowed = f"1 to {shape.max_positions}, the model's positions"
        raise refusal("inflight_max_sequence_tokens", str(wanted), allowed)
    return wanted or shape.max_positions
