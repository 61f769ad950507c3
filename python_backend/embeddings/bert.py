"""A BERT encoder whose last hidden states are averaged to one vector a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from python_backend.embeddings.arithmetic import Floats, attend, gelu, normalize_layer
from python_backend.engine.checkpoint import TensorStore, unusable


@dataclass(frozen=True, slots=True)
class BertConfig:
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    positions: int
    segments: int
    vocabulary: int
    epsilon: float

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def read_config(values: dict[str, Any]) -> BertConfig:
    """Refuses what this encoder would compute wrongly."""
    allowed = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    for key, only in allowed.items():
        if values.get(key, only) != only:
            raise unusable(f"config.json: {key} is {values[key]!r}; this encoder computes {only!r} alone")
    try:
        config = BertConfig(
            layers=int(values["num_hidden_layers"]),
            hidden=int(values["hidden_size"]),
            heads=int(values["num_attention_heads"]),
            feed_forward=int(values["intermediate_size"]),
            positions=int(values["max_position_embeddings"]),
            segments=int(values["type_vocab_size"]),
            vocabulary=int(values["vocab_size"]),
            epsilon=float(values["layer_norm_eps"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise unusable(f"config.json does not describe a BERT: {error!r}") from error
    if config.hidden % config.heads:
        raise unusable(f"config.json: {config.heads} heads do not share {config.hidden} hidden values evenly")
    return config


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Floats  # inputs x outputs
    bias: Floats

    def __call__(self, x: Floats) -> Floats:
        result: Floats = x @ self.weight
        result += self.bias
        return result


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Floats
    bias: Floats
    epsilon: float

    def __call__(self, x: Floats) -> Floats:
        return normalize_layer(x, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True, slots=True)
class _Layer:
    query_key_value: _Linear  # queries come out scaled
    attention_output: _Linear
    attention_norm: _Norm
    up: _Linear
    down: _Linear
    output_norm: _Norm


class BertEncoder:
    """Texts are laid end to end without padding, those of one length side by side.

    Everything but attention works on single tokens and does not care where a text ends; attention takes all
    texts of one length together. So nothing is computed for padding, and there is no mask to get wrong.
    """

    def __init__(self, store: TensorStore) -> None:
        self.config = read_config(store.config)
        self._read = _Reader(store, self.config)
        self._words = store.tensor(
            "embeddings.word_embeddings.weight", self.config.vocabulary, self.config.hidden
        )
        self._positions = self._read.positions()
        self._embedding_norm = self._read.norm("embeddings.LayerNorm")
        self._layers = [self._read.layer(f"encoder.layer.{index}.") for index in range(self.config.layers)]

    def pooled(self, texts: Sequence[Sequence[int]]) -> Floats:
        """The mean of the last hidden states of each text, given as ids, in the order of the texts."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        groups = [(length, len(list(same))) for length, same in groupby(len(texts[index]) for index in order)]
        ids = np.concatenate([np.asarray(texts[index], np.intp) for index in order])
        positions = np.concatenate([np.tile(np.arange(length), count) for length, count in groups])
        states = self._embedding_norm(self._words[ids] + self._positions[positions])
        for layer in self._layers:
            states = self._apply(layer, states, groups)
        result = np.empty((len(texts), self.config.hidden), np.float32)
        result[order] = _means(states, groups)
        return result

    def _apply(self, layer: _Layer, states: Floats, groups: Sequence[tuple[int, int]]) -> Floats:
        mixed = layer.attention_output(self._attention(layer.query_key_value(states), groups))
        mixed += states
        states = layer.attention_norm(mixed)
        output = layer.down(gelu(layer.up(states)))
        output += states
        return layer.output_norm(output)

    def _attention(self, query_key_value: Floats, groups: Sequence[tuple[int, int]]) -> Floats:
        config = self.config
        mixed = np.empty((len(query_key_value), config.hidden), np.float32)
        start = 0
        for length, count in groups:
            end = start + length * count
            split = query_key_value[start:end].reshape(count, length, 3, config.heads, config.head_size)
            queries, keys, values = split.transpose(2, 0, 3, 1, 4)
            answers = attend(queries, keys, values).swapaxes(1, 2)
            mixed[start:end].reshape(answers.shape)[:] = answers
            start = end
        return mixed


def _means(states: Floats, groups: Sequence[tuple[int, int]]) -> Floats:
    means, start = [], 0
    for length, count in groups:
        end = start + length * count
        means.append(states[start:end].reshape(count, length, -1).mean(axis=1))
        start = end
    return np.concatenate(means)


class _Reader:
    """The tensors of one checkpoint, laid out for the encoder."""

    def __init__(self, store: TensorStore, config: BertConfig) -> None:
        self._store = store
        self._config = config

    def positions(self) -> Floats:
        """With the type of the first and only segment added, which every token has."""
        size = self._config.hidden
        positions = self._store.tensor("embeddings.position_embeddings.weight", self._config.positions, size)
        segments = self._store.tensor("embeddings.token_type_embeddings.weight", self._config.segments, size)
        summed: Floats = positions + segments[0]
        return summed

    def norm(self, name: str) -> _Norm:
        weight, bias = (
            self._store.tensor(f"{name}.{part}", self._config.hidden) for part in ("weight", "bias")
        )
        return _Norm(weight, bias, self._config.epsilon)

    def linear(self, name: str, inputs: int, outputs: int) -> _Linear:
        weight = self._store.tensor(f"{name}.weight", outputs, inputs)
        return _Linear(np.ascontiguousarray(weight.T), self._store.tensor(f"{name}.bias", outputs))

    def layer(self, name: str) -> _Layer:
        hidden, wide = self._config.hidden, self._config.feed_forward
        return _Layer(
            self._query_key_value(f"{name}attention.self."),
            self.linear(f"{name}attention.output.dense", hidden, hidden),
            self.norm(f"{name}attention.output.LayerNorm"),
            self.linear(f"{name}intermediate.dense", hidden, wide),
            self.linear(f"{name}output.dense", wide, hidden),
            self.norm(f"{name}output.LayerNorm"),
        )

    def _query_key_value(self, name: str) -> _Linear:
        """Three products in one, the scale of attention's scores in the queries already."""
        parts = [
            self.linear(f"{name}{part}", self._config.hidden, self._config.hidden)
            for part in ("query", "key", "value")
        ]
        scale = np.float32(self._config.head_size**-0.5)
        scales = (scale, np.float32(1), np.float32(1))
        return _Linear(
            np.concatenate([part.weight * each for part, each in zip(parts, scales, strict=True)], axis=1),
            np.concatenate([part.bias * each for part, each in zip(parts, scales, strict=True)]),
        )
