"""What the small files of a sentence-transformers model say: how texts are cut, pooled, scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from python_backend.embeddings.families import read_shape
from python_backend.embeddings.layers import Shape
from python_backend.embeddings.pair_template import QWEN3_RERANKER, PairTemplate, read_template
from python_backend.engine.checkpoint import unusable
from python_backend.engine.checkpoint.safetensors_files import read_json
from python_backend.wire.model_files import (
    ANSWER_WORDS,
    DECODERS,
    LOGIT_SCORE,
    is_reranker,
    judges_by_words,
    read_modules,
)

_MODULES = ("Transformer", "Pooling", "Normalize", LOGIT_SCORE)
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
_ACTIVATIONS = {"Sigmoid": True, "Identity": False}


@dataclass(frozen=True, slots=True)
class Description:
    """`is_reranker`: it scores a text, or a pair of them, and `has_sigmoid` says whether between 0 and 1.

    `answers` are the tokens for yes and no of a decoder whose next word is the score.
    """

    shape: Shape
    max_tokens: int
    pooling: str
    is_lower_case: bool = False
    is_reranker: bool = False
    has_sigmoid: bool = False
    answers: tuple[int, int | None] | None = None
    template: PairTemplate | None = None

    @property
    def is_decoder(self) -> bool:
        return self.shape.family in DECODERS


def read_description(directory: Path) -> Description:
    """Refuses what would be computed wrongly, by the small files alone."""
    values = read_json(directory / "config.json")
    shape = read_shape(values)
    modules = _modules(directory)
    if is_reranker(directory, values):
        return _reranker(directory, values, shape, modules)
    pooling = directory / modules.get("Pooling", "1_Pooling") / "config.json"
    if values.get("model_type") in DECODERS and not pooling.is_file():
        found = f"{directory} is a {values['model_type']} with neither a pooling configuration"
        raise unusable(f"{found} (modules.json, 1_Pooling/config.json) nor a scoring head")
    chosen = _sentences(directory)
    is_lower_case = bool(chosen.get("do_lower_case", False))
    return Description(shape, _max_tokens(directory, chosen, shape), _pooling(pooling), is_lower_case)


def _reranker(
    directory: Path, values: dict[str, Any], shape: Shape, modules: Mapping[str, str]
) -> Description:
    is_decoder = values.get("model_type") in DECODERS
    answers = _answers(directory, values, modules) if judges_by_words(directory, values) else None
    labels = values.get("num_labels", len(values.get("id2label") or {})) or _LABELS
    if labels != 1 and answers is None:
        raise unusable(f"config.json: the classifier has {labels} labels; allowed: 1")
    path = directory / "tokenizer_config.json"
    limit = read_json(path).get("model_max_length") if path.is_file() else None
    longest = min(int(limit), shape.positions) if isinstance(limit, int) and limit > 2 else shape.positions
    pooling = values.get("classifier_pooling", "cls") if shape.family == "modernbert" else "cls"
    template = read_template(directory) if is_decoder else None
    return Description(
        shape,
        longest,
        "lasttoken" if is_decoder else pooling,
        is_reranker=True,
        has_sigmoid=_has_sigmoid(directory, values),
        answers=answers,
        template=QWEN3_RERANKER if template is None and answers is not None else template,
    )


def _has_sigmoid(directory: Path, values: Mapping[str, Any]) -> bool:
    path = directory / "config_sentence_transformers.json"
    told = (values.get("sentence_transformers") or {}).get("activation_fn")
    told = told or values.get("sbert_ce_default_activation_function")
    told = told or (read_json(path).get("activation_fn") if path.is_file() else None) or "Sigmoid"
    activation = str(told).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise unusable(f"config.json: activation_fn is {told!r}; allowed: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[activation]


def _answers(
    directory: Path, values: Mapping[str, Any], modules: Mapping[str, str]
) -> tuple[int, int | None]:
    if LOGIT_SCORE in modules:
        told = read_json(directory / modules[LOGIT_SCORE] / "config.json")
        ids = [told.get("true_token_id"), told.get("false_token_id")]
    else:
        no, yes = values.get(ANSWER_WORDS, ("no", "yes"))
        tokens = read_json(directory / "tokenizer.json").get("model", {}).get("vocab", {})
        ids = [tokens.get(yes), tokens.get(no)]
    yes_id, no_id = ids
    if not isinstance(yes_id, int) or not (isinstance(no_id, int) or LOGIT_SCORE in modules):
        raise unusable(
            f"{directory}: the tokens for yes and no are {ids}; expected two ids of its vocabulary"
        )
    return yes_id, no_id


def _sentences(directory: Path) -> dict[str, Any]:
    path = directory / "sentence_bert_config.json"
    return read_json(path) if path.is_file() else {}


def _max_tokens(directory: Path, chosen: dict[str, Any], shape: Shape) -> int:
    limit = chosen.get("max_seq_length")
    if shape.family in ("nomic_bert", *DECODERS) and isinstance(limit, int):
        limit = min(limit, shape.positions)  # their authors name what they can be stretched to
    if limit is not None and not (isinstance(limit, int) and 2 < limit <= shape.positions):
        path = directory / "sentence_bert_config.json"
        raise unusable(f"{path}: max_seq_length is {limit!r}; allowed: 3 to {shape.positions}")
    return limit or shape.positions


def _modules(directory: Path) -> dict[str, str]:
    """Where the files are of what sentence-transformers does in turn, of which not all is computed here."""
    try:
        found = read_modules(directory)
    except ValueError as error:
        raise unusable(str(error)) from error
    unknown = [kind for kind in found if kind not in _MODULES]
    if unknown:
        path = directory / "modules.json"
        raise unusable(f"{path}: {unknown[0]} is not supported here; allowed: {', '.join(_MODULES)}")
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
        raise unusable(f"{path}: include_prompt is false; allowed: true, as prompts are always pooled here")
    return pooling
