"""Encoders whose products are of 8 bits, beside the same in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backend.embeddings import products
from python_backend.embeddings.graph import Array, Graph
from python_backend.embeddings.layers import Linear
from python_backend.embeddings.model import EmbeddingModel
from python_backend.embeddings.products import Products, RoundedProducts
from python_backend.engine.host.processor import Instructions, cpu_instructions
from tests.embeddings import test_decoders, test_families
from tests.embeddings.published import PUBLISHED
from tests.embeddings.test_decoders import write_embedder, write_reranker
from tests.embeddings.test_families import write_model
from tests.embeddings.test_model import TEXTS

# Weights have a bit less where products are added in pairs.
ERROR_FACTOR = 1 if cpu_instructions() in products.ADD_IN_32_BITS else 2
FIXED_SET = (*TEXTS, *PUBLISHED, "good;", "No.", "How do I reset my password?", "x = y[1:] + 3.14e-9")


class WeighedGraph(Graph):
    def __init__(self) -> None:
        super().__init__()
        self.given: list[Array] = []

    def weight(self, values: Array) -> str:
        self.given.append(values)
        return super().weight(values)


@pytest.fixture(scope="module")
def rounded(checkpoint: Path) -> EmbeddingModel:
    return EmbeddingModel.load(checkpoint, threads=2, precision="int8")


def vectors_of(model: EmbeddingModel, *texts: str) -> Any:
    return model.embed(model.word_pieces.encode(texts))


def least_cosine(ours: Any, theirs: Any) -> float:
    return float((ours * theirs).sum(axis=1).min())


def product_of(graph: Graph, kind: type[Products], states: Any, linear: Linear) -> Any:
    result = kind(graph).add(graph.input("states", 2, is_float=True), linear)
    return graph.session(result, threads=1).run({"states": states})


def test_vectors_point_where_those_in_fp32_do(model: EmbeddingModel, rounded: EmbeddingModel) -> None:
    assert (
        least_cosine(vectors_of(rounded, *FIXED_SET), vectors_of(model, *FIXED_SET))
        > 1 - 0.003 * ERROR_FACTOR
    )


def test_a_processor_that_adds_in_pairs_has_smaller_weights(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, model: EmbeddingModel
) -> None:
    monkeypatch.setattr(products, "cpu_instructions", lambda: Instructions.AVX2)
    graph = WeighedGraph()
    RoundedProducts(graph).add("states", Linear(np.eye(64, dtype=np.float32)))
    assert max(np.abs(each).max() for each in graph.given if each.dtype == np.int8) == 63
    careful = EmbeddingModel.load(checkpoint, threads=2, precision="int8")
    assert least_cosine(vectors_of(careful, *FIXED_SET), vectors_of(model, *FIXED_SET)) > 0.995


def test_a_text_among_others_of_its_length_has_the_vector_that_it_has_alone(rounded: EmbeddingModel) -> None:
    ids = [[101, *range(2000 + 50 * row, 2010 + 50 * row), 102] for row in range(40)]
    alone = np.array([rounded.embed([each])[0] for each in ids])
    assert np.abs(rounded.embed(ids) - alone).max() < 1e-6


def test_a_text_in_any_batch_differs_by_no_more_than_where_a_value_is_rounded_to(
    rounded: EmbeddingModel,
) -> None:
    alone = np.array([vectors_of(rounded, text)[0] for text in FIXED_SET])
    assert least_cosine(vectors_of(rounded, *FIXED_SET), alone) > 0.9995


def in_both(directory: Path) -> tuple[EmbeddingModel, EmbeddingModel]:
    exact, rounded = (EmbeddingModel.load(directory, precision=each) for each in ("fp32", "int8"))
    return exact, rounded


@pytest.mark.parametrize("family", [*test_families.FAMILIES, *test_decoders.FAMILIES])
def test_every_family_makes_nearly_the_same_vectors(tmp_path: Path, family: str) -> None:
    """But for single texts: with random weights a hair may decide which token attention looks at."""
    if family in test_families.FAMILIES:
        write_model(tmp_path, family, "Model")
    else:
        write_embedder(tmp_path, family)
    exact, near = (vectors_of(model, *test_families.SENTENCES[1:]) for model in in_both(tmp_path))
    assert np.median((near * exact).sum(axis=1)) > 1 - 0.005 * ERROR_FACTOR


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_rerankers_score_nearly_the_same(tmp_path: Path, family: str) -> None:
    write_model(tmp_path, family, "ForSequenceClassification", num_labels=1)
    model, rounded = in_both(tmp_path)
    pairs = model.word_pieces.encode_pairs(test_families.PAIRS)
    assert np.abs(rounded.embed(pairs) - model.embed(pairs)).max() < 0.05 * ERROR_FACTOR


def test_a_decoder_that_says_yes_or_no_scores_nearly_the_same(tmp_path: Path) -> None:
    write_reranker(tmp_path)
    model, rounded = in_both(tmp_path)
    pairs = model.word_pieces.encode_pairs(test_decoders.PAIRS)
    assert np.abs(rounded.embed(pairs) - model.embed(pairs)).max() < 0.05 * ERROR_FACTOR


@pytest.mark.parametrize("inputs", [1, 24, 96, 384])
def test_a_product_is_that_of_fp32_nearly_whatever_its_width(inputs: int) -> None:
    random = np.random.default_rng(inputs)
    states = random.normal(size=(5, inputs)).astype(np.float32)
    states[0] = 0
    states[1, 0] = 40  # as some encoders have it in one place of their states
    linear = Linear(*(random.normal(size=size).astype(np.float32) for size in ((inputs, 48), 48)))
    exact, near = (product_of(Graph(), kind, states, linear) for kind in (Products, RoundedProducts))
    assert np.abs(near - exact).max() < 0.02 * ERROR_FACTOR * np.abs(exact).max()
    assert near[0] == pytest.approx(linear.bias)


def test_weights_take_a_quarter_of_the_memory() -> None:
    linear = Linear(np.ones((384, 1152), np.float32), np.ones(1152, np.float32))
    exact, rounded = WeighedGraph(), WeighedGraph()
    for products_of_layers in (Products(exact), RoundedProducts(rounded)):
        for _ in range(24):
            products_of_layers.add("states", linear)
    bytes_in = [sum(each.nbytes for each in graph.given) for graph in (exact, rounded)]
    assert bytes_in[1] / bytes_in[0] == pytest.approx(0.25, rel=0.03)
