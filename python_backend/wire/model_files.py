"""What the small files of a checkpoint say it is for: vectors of texts, scores of pairs of them, or text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ENCODERS = ("bert", "roberta", "xlm-roberta", "mpnet", "modernbert", "nomic_bert")
DECODERS = ("llama", "mistral", "qwen2", "qwen3")
# A decoder could read more, but what one long text takes to be compared with itself grows with its square.
DECODER_TOKENS = 8192
# Module of sentence-transformers that makes a score of what a decoder would say next.
LOGIT_SCORE = "LogitScore"
# vLLM's name in config.json for the words of such a score.
ANSWER_WORDS = "classifier_from_token"
_CLASSIFIER = "ForSequenceClassification"
_OF_SENTENCE_TRANSFORMERS = ("modules.json", "sentence_bert_config.json")
# Published as a model of text; it is known by this in its path.
_QWEN3_RERANKER = "qwen3-reranker"


def is_embedding_model(directory: Path, config: Mapping[str, Any]) -> bool:
    """Whether it makes vectors, or scores, in place of text."""
    return (
        config.get("model_type") in ENCODERS
        or any((directory / name).is_file() for name in _OF_SENTENCE_TRANSFORMERS)
        or is_reranker(directory, config)
    )


def is_reranker(directory: Path, config: Mapping[str, Any]) -> bool:
    return is_classifier(config) or judges_by_words(directory, config)


def is_classifier(config: Mapping[str, Any]) -> bool:
    return any(str(each).endswith(_CLASSIFIER) for each in config.get("architectures") or ())


def judges_by_words(directory: Path, config: Mapping[str, Any]) -> bool:
    """Whether it is a decoder whose next word, yes or no, is the score."""
    if config.get("model_type") not in DECODERS or is_classifier(config):
        return False
    if (directory / "modules.json").is_file():
        return LOGIT_SCORE in read_modules(directory)
    named = config.get("model_type") == "qwen3" and _QWEN3_RERANKER in str(directory).lower()
    return named or ANSWER_WORDS in config


def read_modules(directory: Path) -> dict[str, str]:
    """The modules of sentence-transformers by their kinds, and where the files of each are.

    Raises ValueError where modules.json cannot be read; there are none where there is no such file.
    """
    path = directory / "modules.json"
    if not path.is_file():
        return {}
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        return {module["type"].rpartition(".")[2]: str(module.get("path", "")) for module in listed}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {error!r}") from error
