"""A model's configuration, whose missing keys are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from python_backend.engine.checkpoint import unusable
from python_backend.wire.errors import ErrorKind, InflightError


class Config(dict[str, Any]):
    """What `config.json` says, and below it what the family assumes where it is silent.

    `sequence_tokens` is how long sequences are meant to become, where the operator has said it.
    """

    def __init__(
        self, config: Mapping[str, Any], assumed: Mapping[str, Any], sequence_tokens: int | None = None
    ) -> None:
        super().__init__({**assumed, **config})
        self.sequence_tokens = sequence_tokens

    def changed(self, **changes: Any) -> Config:
        return Config(changes, self, self.sequence_tokens)

    def __missing__(self, key: str) -> Any:
        raise unusable(f"config.json lacks {key}")


def unsupported(message: str) -> InflightError:
    return InflightError(ErrorKind.UNSUPPORTED, message)
