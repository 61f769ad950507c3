"""What a checkpoint says of its model: how it samples when a client does not say, and how much it holds."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from python_backend.wire.model_files import DECODER_TOKENS, DECODERS, is_reranker
from router.core.embedding import SPECIAL_TOKENS, EmbeddingLimits

log = logging.getLogger(__name__)

_ALLOWED = {"temperature": (0, 2), "top_p": (0, 1), "top_k": (0, 1_000_000), "repetition_penalty": (0.01, 10)}
# Of embedders and of rerankers: where the longest text is told.
_MAX_TOKENS = (
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
)

# What the chat template of a decoder writes around a pair; Qwen3-Reranker's has about 85 tokens.
_TEMPLATE_TOKENS = 128


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
    text = config.get("text_config", config) if isinstance(config, dict) else None
    tokens = text.get("max_position_embeddings") if isinstance(text, dict) else None
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
    """From the files that the model itself reads, and has refused where they make no sense."""
    config = _read(checkpoint_dir / "config.json")
    scores = is_reranker(checkpoint_dir, config)
    file, key = _MAX_TOKENS[scores]
    positions, chosen = _positions(config), _read_if_there(checkpoint_dir / file).get(key)
    prompts = {} if scores else _read_if_there(checkpoint_dir / "config_sentence_transformers.json")
    return EmbeddingLimits(
        dimensions=1 if scores else config.get("hidden_size") or config["n_embd"],
        vocabulary=config["vocab_size"],
        max_tokens=min(chosen, positions) if isinstance(chosen, int) and chosen > 2 else positions,
        is_reranker=scores,
        prompts={str(name): str(text) for name, text in (prompts.get("prompts") or {}).items()},
        default_prompt=prompts.get("default_prompt_name") or "",
        frame_tokens=_TEMPLATE_TOKENS if scores and config.get("model_type") in DECODERS else SPECIAL_TOKENS,
    )


def _positions(config: dict[str, Any]) -> int:
    """Tokens of the longest text; the positions of some families begin after the id of padding."""
    if "n_embd" in config:
        return int(config.get("max_trained_positions") or config["n_positions"])
    family = config.get("model_type")
    padding = int(config.get("pad_token_id", 1)) if family in ("roberta", "xlm-roberta") else 1
    skipped = padding + 1 if family in ("roberta", "xlm-roberta", "mpnet") else 0
    most = DECODER_TOKENS if family in DECODERS else math.inf
    return int(min(config["max_position_embeddings"], most)) - skipped


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _read_if_there(path: Path) -> dict[str, Any]:
    return _read(path) if path.is_file() else {}
