"""BERT; and RoBERTa, XLM-RoBERTa: a BERT whose positions begin after the id of padding."""

from __future__ import annotations

from python_backend.embeddings.families.reader import Family, Reader, Values, require, usual_shape
from python_backend.embeddings.layers import Encoder, Head, Layer, Shape

WORDS = "embeddings.word_embeddings.weight"


def _bert_shape(values: Values) -> Shape:
    _require(values)
    epsilon, types = float(values["layer_norm_eps"]), int(values["type_vocab_size"])
    return usual_shape(values, "bert", int(values["max_position_embeddings"]), epsilon=epsilon, types=types)


def _roberta_shape(values: Values) -> Shape:
    _require(values)
    padding = int(values.get("pad_token_id", 1))
    positions = int(values["max_position_embeddings"]) - padding - 1
    epsilon, types = float(values["layer_norm_eps"]), int(values["type_vocab_size"])
    return usual_shape(values, "roberta", positions, epsilon=epsilon, padding=padding, types=types)


def _require(values: Values) -> None:
    require(values, hidden_act="gelu", position_embedding_type="absolute", is_decoder=False)


def _bert(read: Reader) -> Encoder:
    shape = read.shape
    positions = read.tensor("embeddings.position_embeddings.weight", shape.places, shape.hidden)
    types = read.tensor("embeddings.token_type_embeddings.weight", shape.types, shape.hidden)
    has_types = shape.padding is None  # RoBERTa has them all the same, and never any but the first
    return Encoder(
        shape,
        read.tensor(WORDS, shape.vocabulary, shape.hidden),
        positions if has_types else positions + types[0],
        types if has_types else None,
        read.norm("embeddings.LayerNorm"),
        tuple(_layer(read, f"encoder.layer.{index}.") for index in range(shape.layers)),
    )


def _layer(read: Reader, name: str) -> Layer:
    hidden, wide = read.shape.hidden, read.shape.feed_forward
    parts = [f"{name}attention.self.{part}" for part in ("query", "key", "value")]
    return Layer(
        read.joined(parts, hidden, hidden),
        read.linear(f"{name}attention.output.dense", hidden, hidden),
        read.norm(f"{name}attention.output.LayerNorm"),
        read.linear(f"{name}intermediate.dense", hidden, wide),
        read.linear(f"{name}output.dense", wide, hidden),
        read.norm(f"{name}output.LayerNorm"),
    )


def pooler_head(read: Reader) -> Head:
    hidden = read.shape.hidden
    dense = read.linear("pooler.dense", hidden, hidden)
    return Head(read.beside().linear("classifier", hidden, 1), dense, "tanh")


def dense_head(read: Reader) -> Head:
    hidden, beside = read.shape.hidden, read.beside()
    dense = beside.linear("classifier.dense", hidden, hidden)
    return Head(beside.linear("classifier.out_proj", hidden, 1), dense, "tanh")


BERT = Family(_bert_shape, WORDS, ("bert.",), _bert, pooler_head)
ROBERTA = Family(_roberta_shape, WORDS, ("roberta.",), _bert, dense_head)
