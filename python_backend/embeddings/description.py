"""What the small files of a sentence-transformers model say: how texts are cut, pooled, scored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from python_backend.embeddings.families import read_shape
from python_backend.embeddings.layers import Shape
from python_backend.engine.checkpoint import unusable
from python_backend.engine.checkpoint.safetensors_files import read_json

_MODULES = ("Transformer", "Pooling", "Normalize")
_MODE = "pooling_mode"
# By the names that sentence-transformers has for them, of which each has one or two.
_POOLINGS = {
    "mean": "mean",
    "mean_tokens": "mean",
    "cls": "cls",
    "cls_token": "cls",
    "lasttoken": "lasttoken",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "weightedmean_tokens": "weightedmean",
}
_LABELS = 2  # where a config does not say
_CLASSIFIER = "ForSequenceClassification"
_ACTIVATIONS = {"Sigmoid": True, "Identity": False}


@dataclass(frozen=True, slots=True)
class Description:
    """`is_reranker`: it scores a text, or a pair of them, and `has_sigmoid` says whether between 0 and 1."""

    shape: Shape
    max_tokens: int
    pooling: str
    is_lower_case: bool = False
    is_reranker: bool = False
    has_sigmoid: bool = False


def read_description(directory: Path) -> Description:
    """Refuses what would be computed wrongly, by the small files alone."""
    values = read_json(directory / "config.json")
    shape = read_shape(values)
    if any(str(each).endswith(_CLASSIFIER) for each in values.get("architectures") or ()):
        return _reranker(directory, values, shape)
    modules = _modules(directory)
    chosen = _sentences(directory)
    pooling = _pooling(directory / modules.get("Pooling", "1_Pooling") / "config.json")
    is_lower_case = bool(chosen.get("do_lower_case", False))
    return Description(shape, _max_tokens(directory, chosen, shape), pooling, is_lower_case)


def _reranker(directory: Path, values: dict[str, Any], shape: Shape) -> Description:
    labels = values.get("num_labels", len(values.get("id2label") or {})) or _LABELS
    if labels != 1:
        raise unusable(f"config.json: the classifier has {labels} labels; a reranker has 1")
    told = (values.get("sentence_transformers") or {}).get("activation_fn")
    told = told or values.get("sbert_ce_default_activation_function") or "Sigmoid"
    activation = str(told).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise unusable(f"config.json: activation_fn is {told!r}; allowed: {', '.join(_ACTIVATIONS)}")
    path = directory / "tokenizer_config.json"
    limit = read_json(path).get("model_max_length") if path.is_file() else None
    longest = min(int(limit), shape.positions) if isinstance(limit, int) and limit > 2 else shape.positions
    pooling = values.get("classifier_pooling", "cls") if shape.family == "modernbert" else "cls"
    return Description(shape, longest, pooling, is_reranker=True, has_sigmoid=_ACTIVATIONS[activation])


def _sentences(directory: Path) -> dict[str, Any]:
    path = directory / "sentence_bert_config.json"
    return read_json(path) if path.is_file() else {}


def _max_tokens(directory: Path, chosen: dict[str, Any], shape: Shape) -> int:
    limit = chosen.get("max_seq_length")
    if shape.family == "nomic_bert" and isinstance(limit, int):
        limit = min(limit, shape.positions)  # its authors name what it can be stretched to
    if limit is not None and not (isinstance(limit, int) and 2 < limit <= shape.positions):
        path = directory / "sentence_bert_config.json"
        raise unusable(f"{path}: max_seq_length is {limit!r}; allowed: 3 to {shape.positions}")
    return limit or shape.positions


def _modules(directory: Path) -> dict[str, str]:
    """Where the files are of what sentence-transformers does in turn, of which not all is computed here."""
    path = directory / "modules.json"
    if not path.is_file():
        return {}
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        found = {module["type"].rpartition(".")[2]: str(module.get("path", "")) for module in listed}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise unusable(f"{path} cannot be read: {error!r}") from error
    unknown = [kind for kind in found if kind not in _MODULES]
    if unknown:
        raise unusable(f"{path}: {unknown[0]} is not computed here; allowed: {', '.join(_MODULES)}")
    return {kind: place for kind, place in found.items() if place}


def _pooling(path: Path) -> str:
    if not path.is_file():
        return "mean"  # as sentence-transformers has it then
    values = read_json(path)
    chosen = [key for key, value in values.items() if key.startswith(f"{_MODE}_") and value is True]
    if _MODE in values:
        named = values[_MODE]
        chosen = [str(each) for each in (named if isinstance(named, list) else [named])]
    pooling = _POOLINGS.get(chosen[0].removeprefix(f"{_MODE}_")) if len(chosen) == 1 else None
    if pooling is None:
        allowed = ", ".join(sorted(set(_POOLINGS.values())))
        raise unusable(f"{path}: {', '.join(chosen) or 'nothing'} is chosen; allowed: one of {allowed}")
    if values.get("include_prompt") is False:
        raise unusable(f"{path}: include_prompt is false; prompts are part of what is pooled here")
    return pooling
