from __future__ import annotations

from dataclasses import replace

import pytest

from python_backend.engine.models.decoder import Activation, DecoderShape, ExpertShape

LLAMA_8B = DecoderShape(
    layers=32,
    hidden=4096,
    intermediate=14336,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocabulary=128256,
    max_positions=131072,
    norm_epsilon=1e-5,
    activation=Activation.SILU,
    query_scale=128**-0.5,
    ropes=(),
    rope_of_layer=(0,) * 32,
    windows=(None,) * 32,
)


def test_attention_takes_as_long_as_products_behind_a_context_that_follows_from_the_shape() -> None:
    products = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    attention_to_a_token = 2 * 4096  # scores and values of all heads
    assert LLAMA_8B.even_context(1.0) == pytest.approx(products / attention_to_a_token)
    assert LLAMA_8B.even_context(0.5) == pytest.approx(products / attention_to_a_token / 2)


def test_only_layers_that_look_back_at_everything_make_long_contexts_slow() -> None:
    half = replace(LLAMA_8B, windows=(None, 4096) * 16)
    assert half.even_context(1.0) == 2 * (LLAMA_8B.even_context(1.0) or 0)
    assert replace(LLAMA_8B, windows=(4096,) * 32).even_context(1.0) is None


def test_of_experts_those_count_that_a_token_goes_through() -> None:
    experts = ExpertShape(64, per_token=7, intermediate=2048, renormalizes=True, shared=0)
    assert replace(LLAMA_8B, intermediate=1, experts=experts).even_context(1.0) == LLAMA_8B.even_context(1.0)
