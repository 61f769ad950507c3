"""One step's attention: which rows of the flat token batch look at which blocks of the cache.

The batch is cut into segments: runs of rows from sequences that compute equally many tokens in this step and
have contexts of similar length. A segment attends in one call, padded to its longest context; grouping by
the power of two of the context bounds the padding to half. A decoding batch is thereby a few segments, and a
chunk of a prompt is a segment of its own, by the same code.

What a mask hides must still be numbers, for 0 times NaN is NaN. So a sequence is padded with blocks of its
own, and a block is cleared when a sequence enters it: nobody meets what another has left behind.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence as Row
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from benchmarks.torch_model.kv_cache import KvCache
    from python_backend.engine.models.decoder import DecoderShape
    from python_backend.engine.scheduling.plan import Chunk


def segment_key(chunk: Chunk, tokens_per_block: int) -> tuple[int, int]:
    """Chunks with equal keys may share a segment; sorting by it puts them side by side."""
    return chunk.count, (_context_blocks(chunk, tokens_per_block) - 1).bit_length()


def _context_blocks(chunk: Chunk, tokens_per_block: int) -> int:
    return -(-chunk.end // tokens_per_block)


def _entered_blocks(chunk: Chunk, tokens_per_block: int) -> list[int]:
    """The blocks whose first token is in this chunk."""
    first = -(-chunk.start // tokens_per_block)
    return chunk.sequence.table.blocks[first : _context_blocks(chunk, tokens_per_block)]


@dataclass(frozen=True, slots=True)
class Segment:
    """`blocks` (sequences, width) names the context; a mask (sequences, 1, rows, tokens) hides the rest.

    There is one mask for each size of window that a layer of the model may have.
    """

    first_row: int
    last_row: int
    queries: int
    blocks: torch.Tensor
    masks: dict[int | None, torch.Tensor]

    @classmethod
    def of(
        cls,
        chunks: Row[Chunk],
        first_row: int,
        tokens_per_block: int,
        group: int,
        windows: Collection[int | None],
    ) -> Segment:
        count = chunks[0].count
        contexts = [
            chunk.sequence.table.blocks[: _context_blocks(chunk, tokens_per_block)] for chunk in chunks
        ]
        width = max(len(context) for context in contexts)
        blocks = [context + context[-1:] * (width - len(context)) for context in contexts]
        starts = torch.tensor([chunk.start for chunk in chunks])
        reach = (starts[:, None] + torch.arange(count))[:, :, None]
        tokens = torch.arange(width * tokens_per_block)
        masks = {}
        for window in windows:
            visible = tokens <= reach
            if window is not None:
                visible &= tokens > reach - window
            mask = torch.zeros(visible.shape).masked_fill_(~visible, -math.inf)
            masks[window] = (mask.repeat(1, group, 1) if count > 1 else mask)[:, None]
        return cls(first_row, first_row + count * len(chunks), count, torch.tensor(blocks), masks)


class StepAttention:
    """Writes a layer's new keys and values and attends to all that the step's sequences have.

    The query heads that share a key head are folded into the query dimension, so that keys and values are
    never repeated.
    """

    def __init__(self, cache: KvCache, chunks: Row[Chunk], shape: DecoderShape) -> None:
        """`chunks` in the order of the batch's rows, sorted by `segment_key`."""
        self._cache = cache
        self._shape = shape
        self._group = shape.heads // shape.kv_heads
        size = cache.tokens_per_block
        self._slots = torch.tensor(
            [
                chunk.sequence.table.blocks[position // size] * size + position % size
                for chunk in chunks
                for position in range(chunk.start, chunk.end)
            ]
        )
        if entered := [block for chunk in chunks for block in _entered_blocks(chunk, size)]:
            cache.clear(torch.tensor(entered))
        self._segments: list[Segment] = []
        row = 0
        for _, members in groupby(chunks, lambda chunk: segment_key(chunk, size)):
            segment = Segment.of(list(members), row, size, self._group, set(shape.windows))
            self._segments.append(segment)
            row = segment.last_row

    def __call__(self, layer: int, queries: torch.Tensor, keys_values: torch.Tensor) -> torch.Tensor:
        """From (rows, query_heads, head_dim) and (rows, floats per slot) to (rows, heads side by side)."""
        self._cache.write(layer, self._slots, keys_values)
        if len(self._segments) == 1:
            return self._attend(layer, self._segments[0], queries)
        return torch.cat(
            [
                self._attend(layer, segment, queries[segment.first_row : segment.last_row])
                for segment in self._segments
            ]
        )

    def _attend(self, layer: int, segment: Segment, queries: torch.Tensor) -> torch.Tensor:
        keys, values = self._cache.read(layer, segment.blocks)
        folded = self._fold(queries, segment.queries)
        mask = segment.masks[self._shape.windows[layer]]
        scale, softcap = self._shape.query_scale, self._shape.attention_softcap
        if softcap is None:
            attended = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        else:
            scores = torch.matmul(folded, keys.transpose(2, 3)).mul_(scale / softcap).tanh_().mul_(softcap)
            attended = torch.matmul(scores.add_(mask).softmax(-1), values)
        return self._unfold(attended, segment.queries)

    def _fold(self, queries: torch.Tensor, count: int) -> torch.Tensor:
        """(rows, query_heads, head_dim) as (sequences, kv_heads, group * count, head_dim)."""
        kv_heads, head_dim = self._shape.kv_heads, self._shape.head_dim
        if count == 1:
            return queries.view(-1, kv_heads, self._group, head_dim)
        split = queries.view(-1, count, kv_heads, self._group, head_dim)
        return split.permute(0, 2, 3, 1, 4).reshape(-1, kv_heads, self._group * count, head_dim)

    def _unfold(self, attended: torch.Tensor, count: int) -> torch.Tensor:
        """The way back, to (rows, query_heads * head_dim)."""
        sequences, kv_heads, _, head_dim = attended.shape
        width = kv_heads * self._group * head_dim
        if count == 1:
            return attended.reshape(sequences, width)
        split = attended.view(sequences, kv_heads, self._group, count, head_dim)
        return split.permute(0, 3, 1, 2, 4).reshape(sequences * count, width)
