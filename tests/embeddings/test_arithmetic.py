"""What numpy lacks, against the standard library and torch."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.embeddings.arithmetic import attend, gelu, normalize_layer, to_unit_length

GENERATOR = np.random.default_rng(5)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=200))
def test_gelu_is_the_exact_variant(values: list[float]) -> None:
    exact = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in values]
    computed = gelu(np.array([values], np.float32))[0].tolist()
    for x, ours, theirs in zip(values, computed, exact, strict=True):
        assert abs(ours - theirs) <= 4e-7 * max(1.0, abs(x))


def test_gelu_works_on_more_rows_than_a_block() -> None:
    x = GENERATOR.standard_normal((77, 5), dtype=np.float32)
    theirs = torch.nn.functional.gelu(torch.from_numpy(x.copy())).numpy()
    assert np.abs(gelu(x) - theirs).max() < 1e-6


def test_a_layer_is_normalized_as_torch_does_it() -> None:
    x = 10 * GENERATOR.standard_normal((6, 32), dtype=np.float32) + 3
    weight, bias = GENERATOR.standard_normal((2, 32), dtype=np.float32)
    theirs = torch.nn.functional.layer_norm(
        torch.from_numpy(x.copy()), (32,), torch.from_numpy(weight), torch.from_numpy(bias), eps=1e-12
    ).numpy()
    assert np.abs(normalize_layer(x, weight, bias, 1e-12) - theirs).max() < 3e-6


def test_attention_is_that_of_torch_and_stable_for_large_scores() -> None:
    queries, keys, values = 9 * GENERATOR.standard_normal((3, 2, 4, 7, 8), dtype=np.float32)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        torch.from_numpy(queries), torch.from_numpy(keys), torch.from_numpy(values), scale=1.0
    ).numpy()
    assert np.abs(attend(queries, keys, values) - theirs).max() < 1e-4


def test_unit_length_leaves_zeros_alone() -> None:
    unit = to_unit_length(np.array([[3, 4], [0, 0]], np.float32))
    assert np.allclose(unit, np.array([[0.6, 0.8], [0, 0]]))
