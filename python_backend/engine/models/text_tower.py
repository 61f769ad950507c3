"""The part of a model with eyes that reads and writes text, which is a model of a family that is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from python_backend.engine.checkpoint import Matrix, TensorStore, Weights
from python_backend.engine.models.config import unsupported

# What "model." and "lm_head." are called there: by older checkpoints, and as transformers writes them now.
_SPELLINGS = (
    {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    {"model.": "model.language_model.", "lm_head.": "lm_head."},
)


class TextTower:
    """A `TensorStore` of the text alone, by the names that it has where it is the whole model."""

    def __init__(self, checkpoint: TensorStore, text_type: str) -> None:
        self._checkpoint = checkpoint
        self._spelling = next(
            (each for each in _SPELLINGS if f"{each['model.']}embed_tokens.weight" in checkpoint),
            _SPELLINGS[-1],
        )
        text = checkpoint.config.get("text_config")
        if not isinstance(text, Mapping):
            raise unsupported(f"config.json of {checkpoint.path} has no text_config")
        if (found := text.get("model_type", text_type)) != text_type:
            raise unsupported(
                f"text_config is of a {found!r}, which is not supported there; supported: {text_type}"
            )
        self.config: dict[str, Any] = dict(text)
        if "model.embed_tokens.weight" in self:
            self.config["tie_word_embeddings"] = "lm_head.weight" not in self

    @property
    def path(self) -> Path:
        return self._checkpoint.path

    @property
    def architectures(self) -> list[str]:
        return self._checkpoint.architectures

    @property
    def quantized_bytes(self) -> int | None:
        return self._checkpoint.quantized_bytes

    def __contains__(self, name: str) -> bool:
        return self._spelled(name) in self._checkpoint

    def tensor(self, name: str, *shape: int) -> Weights:
        return self._checkpoint.tensor(self._spelled(name), *shape)

    def matrix(self, name: str, *shape: int) -> Matrix:
        return self._checkpoint.matrix(self._spelled(name), *shape)

    def _spelled(self, name: str) -> str:
        for plain, there in self._spelling.items():
            if name.startswith(plain):
                return there + name.removeprefix(plain)
        return name
