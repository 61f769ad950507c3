from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.torch_model.attention import StepAttention, segment_key
from benchmarks.torch_model.kv_cache import KvCache
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.models.decoder import Activation, DecoderShape, Rope
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence

KV_HEADS, GROUP, HEAD_DIM = 2, 3, 8
ROW = 2 * KV_HEADS * HEAD_DIM
SHAPE = DecoderShape(
    layers=1,
    hidden=KV_HEADS * GROUP * HEAD_DIM,
    intermediate=1,
    heads=KV_HEADS * GROUP,
    kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    vocabulary=1,
    max_positions=64,
    norm_epsilon=1e-6,
    activation=Activation.SILU,
    query_scale=HEAD_DIM**-0.5,
    ropes=(Rope(np.zeros(HEAD_DIM // 2, np.float32)),),
    rope_of_layer=(0,),
    windows=(None,),
)


class History:
    """Random keys and values of one sequence, and plain attention over them."""

    def __init__(self, key: int, tokens: int) -> None:
        self.sequence = Sequence(key, key, GenerationRequest([0] * tokens, 1), 1)
        dice = torch.Generator().manual_seed(key)
        self.rows = torch.randn(tokens, ROW, generator=dice)
        self.queries = torch.randn(tokens, KV_HEADS * GROUP, HEAD_DIM, generator=dice)

    def reference(self) -> torch.Tensor:
        keys, values = self.rows.view(-1, 2, KV_HEADS, HEAD_DIM).unbind(1)
        attended = scaled_dot_product_attention(
            self.queries.transpose(0, 1),
            keys.repeat_interleave(GROUP, 1).transpose(0, 1),
            values.repeat_interleave(GROUP, 1).transpose(0, 1),
            is_causal=True,
        )
        return attended.transpose(0, 1).reshape(len(self.rows), -1)


def run(cache: KvCache, histories: list[History], counts: list[int]) -> list[torch.Tensor]:
    """One step that computes so many more tokens of each; what each of them attended to."""
    pairs = [
        (Chunk(history.sequence, history.sequence.computed_tokens, count), history)
        for history, count in zip(histories, counts, strict=True)
    ]
    ordered = sorted(pairs, key=lambda pair: segment_key(pair[0], cache.tokens_per_block))
    queries = [history.queries[chunk.start : chunk.end] for chunk, history in ordered]
    rows = [history.rows[chunk.start : chunk.end] for chunk, history in ordered]
    attention = StepAttention(cache, [chunk for chunk, _ in ordered], SHAPE)
    attended = iter(attention(0, torch.cat(queries), torch.cat(rows)))
    found = {
        history.sequence.key: torch.stack([next(attended) for _ in range(chunk.count)])
        for chunk, history in ordered
    }
    for chunk, history in pairs:
        history.sequence.computed_tokens = chunk.end
    return [found[history.sequence.key] for history in histories]


def test_chunks_of_any_size_side_by_side_attend_only_to_their_own_past() -> None:
    pool, cache = BlockPool(60, 4), KvCache(SHAPE, 60, 4)
    histories = [History(key, tokens) for key, tokens in enumerate((3, 9, 17, 30, 31))]
    for history in histories:
        assert pool.grow(history.sequence.table, len(history.rows))
    dice = torch.Generator().manual_seed(0)
    while active := [history for history in histories if history.sequence.pending_tokens]:
        counts = [
            min(history.sequence.pending_tokens, int(torch.randint(1, 6, (1,), generator=dice)))
            for history in active
        ]
        starts = [history.sequence.computed_tokens for history in active]
        for history, start, count, attended in zip(
            active, starts, counts, run(cache, active, counts), strict=True
        ):
            torch.testing.assert_close(attended, history.reference()[start : start + count])


def test_contexts_of_similar_length_share_a_segment() -> None:
    def key(end: int) -> tuple[int, int]:
        return segment_key(Chunk(History(0, end).sequence, end - 1, 1), tokens_per_block=4)

    assert key(1) == key(4)
    assert key(17) == key(32)
    assert len({key(4), key(8), key(16), key(32), key(64)}) == 5
