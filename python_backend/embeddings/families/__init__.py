"""The encoders and decoders people use, by the `model_type` of their config.json."""

from __future__ import annotations

from python_backend.embeddings.families.bert import BERT, ROBERTA
from python_backend.embeddings.families.decoder import DECODER
from python_backend.embeddings.families.modernbert import MODERNBERT
from python_backend.embeddings.families.mpnet import MPNET
from python_backend.embeddings.families.nomic import NOMIC
from python_backend.embeddings.families.reader import Family, Values
from python_backend.embeddings.layers import Shape
from python_backend.engine.checkpoint import unusable
from python_backend.wire.model_files import DECODERS, ENCODERS

FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "mpnet": MPNET,
    "modernbert": MODERNBERT,
    "nomic_bert": NOMIC,
    **dict.fromkeys(DECODERS, DECODER),
}
_ASSUMED = "bert"  # where a config does not say


def family_of(values: Values) -> Family:
    kind = values.get("model_type", _ASSUMED)
    if kind not in FAMILIES:
        known = f"supported encoders: {', '.join(ENCODERS)}; decoders: {', '.join(DECODERS)}"
        raise unusable(f"config.json: model_type is {kind!r}; {known}")
    return FAMILIES[kind]


def read_shape(values: Values) -> Shape:
    """Refuses what would be computed wrongly."""
    try:
        shape = family_of(values).shape(values)
    except (KeyError, TypeError, ValueError) as error:
        kind = values.get("model_type", _ASSUMED)
        raise unusable(f"config.json does not describe a model of the type {kind}: {error!r}") from error
    if shape.own_head_size is None and shape.hidden % shape.heads:
        raise unusable(f"config.json: {shape.heads} heads do not divide {shape.hidden} hidden values evenly")
    return shape
