"""What a checkpoint says of its model: how it samples when a client does not say, and how much it holds."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path

from router.core.embedding import EmbeddingLimits

log = logging.getLogger(__name__)

_ALLOWED = {"temperature": (0, 2), "top_p": (0, 1), "top_k": (0, 1_000_000), "repetition_penalty": (0.01, 10)}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """OpenAI's defaults, until a checkpoint says otherwise."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


# Where a checkpoint does not tell.
CONTEXT_TOKENS = 8192


def load_context_tokens(checkpoint_dir: Path) -> int:
    """What prompt and answer can come to together, as the checkpoint's config.json has it."""
    path = checkpoint_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return CONTEXT_TOKENS
    tokens = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else CONTEXT_TOKENS


def load_sampling_defaults(checkpoint_dir: Path) -> SamplingDefaults:
    defaults = SamplingDefaults()
    path = checkpoint_dir / "generation_config.json"
    if not path.is_file():
        return defaults
    try:
        advice = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        log.warning("%s is not valid JSON: OpenAI's sampling defaults are used", path.name)
        return defaults
    for name in (field.name for field in fields(SamplingDefaults)):
        value = advice.get(name) if isinstance(advice, dict) else None
        low, high = _ALLOWED[name]
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            defaults = replace(defaults, **{name: type(getattr(defaults, name))(value)})
    return defaults


def load_limits(checkpoint_dir: Path) -> EmbeddingLimits:
    """From the files that the model itself reads; for the router's start."""
    config = json.loads((checkpoint_dir / "config.json").read_text(encoding="utf-8"))
    sentences = checkpoint_dir / "sentence_bert_config.json"
    chosen = json.loads(sentences.read_text(encoding="utf-8")) if sentences.is_file() else {}
    return EmbeddingLimits(
        dimensions=config["hidden_size"],
        vocabulary=config["vocab_size"],
        max_tokens=chosen.get("max_seq_length") or config["max_position_embeddings"],
    )
