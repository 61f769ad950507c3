"""What a Hugging Face checkpoint says of itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters, refusal


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    vocabulary: int
    max_sequence_tokens: int
    end_ids: tuple[int, ...]
    tokenizer_dir: str | None
    sees: bool = False


def read_checkpoint(parameters: EngineParameters) -> CheckpointFacts:
    folder = Path(parameters.gpt_model_path)
    try:
        config = json.loads((folder / "config.json").read_text())
        config = {**config, **(config.get("text_config") or {})}
        vocabulary, longest = int(config["vocab_size"]), int(config["max_position_embeddings"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InflightError(
            ErrorKind.MODEL_NOT_FOUND, f"{folder / 'config.json'} does not describe a model: {error!r}"
        ) from error
    wanted = parameters.inflight_max_sequence_tokens or longest
    if wanted > longest:
        raise refusal("inflight_max_sequence_tokens", str(wanted), f"at most {longest}, the model's own")
    tokenizer = Path(parameters.tokenizer_dir or folder)
    ends = config.get("eos_token_id")
    return CheckpointFacts(
        vocabulary,
        wanted,
        tuple(ends) if isinstance(ends, list) else (ends,) if isinstance(ends, int) else (),
        str(tokenizer) if (tokenizer / "tokenizer.json").is_file() else None,
        "vision_config" in config,
    )
