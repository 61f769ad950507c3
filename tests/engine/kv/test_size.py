from __future__ import annotations

import numpy as np
import pytest

from python_backend.engine.kv.size import kv_bytes_per_block
from python_backend.engine.models.decoder import Activation, DecoderShape, Rope


def shape_of(head_dim: int) -> DecoderShape:
    return DecoderShape(
        layers=2,
        hidden=64,
        intermediate=64,
        heads=6,
        kv_heads=3,
        head_dim=head_dim,
        vocabulary=50,
        max_positions=64,
        norm_epsilon=1e-6,
        activation=Activation.SILU,
        query_scale=1.0,
        ropes=(Rope(np.zeros(head_dim // 2, np.float32)),),
        rope_of_layer=(0, 0),
        windows=(None, None),
    )


@pytest.mark.parametrize(
    ("head_dim", "tokens_per_block", "numbers_of_a_head"),
    [
        (64, 16, 64 + 64),
        (64, 128, 64 + 64),
        (64, 1, 64 * 16 + 64),
        (64, 8, 64 * 2 + 64),
        (40, 16, 40 + 48),
        (40, 24, 54 + 48),  # 40 · 32 / 24 = 53.3
    ],
)
def test_keys_are_padded_to_whole_vectors_of_slots_and_values_of_dimensions(
    head_dim: int, tokens_per_block: int, numbers_of_a_head: int
) -> None:
    for number_bytes in (2, 4):
        found = kv_bytes_per_block(shape_of(head_dim), 2, tokens_per_block, number_bytes) / tokens_per_block
        assert numbers_of_a_head - 1 < found / (2 * 3 * number_bytes) <= numbers_of_a_head
