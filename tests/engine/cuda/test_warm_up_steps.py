"""The step that memory is measured with: as large as any, and one that may really come."""

from __future__ import annotations

from collections.abc import Sequence as Row

from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.cuda.warm_up_steps import (
    blocks_for,
    largest_step,
    mixed_steps,
    run,
    warm_up_lengths,
)
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.kv.window_claims import Window
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.ports import ChunkResult, Finished

limits = st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(2, 300))


@given(limits)
def test_the_largest_step_uses_every_limit_and_exceeds_none(
    limits: tuple[int, int, int],
) -> None:
    step_tokens, batch, sequence_tokens = limits
    lengths = largest_step(step_tokens, batch, sequence_tokens)
    assert sum(lengths) <= step_tokens
    assert len(lengths) <= batch
    assert all(1 <= length < sequence_tokens for length in lengths)
    assert len(lengths) == min(batch, step_tokens)
    assert sum(lengths) == step_tokens or all(length == sequence_tokens - 1 for length in lengths)


@given(st.lists(st.integers(1, 100)), st.integers(1, 64))
def test_profiled_sequences_have_enough_blocks_and_none_empty(
    lengths: list[int], tokens_per_block: int
) -> None:
    blocks = blocks_for(lengths, tokens_per_block)
    assert sum(lengths) <= blocks * tokens_per_block
    assert blocks * tokens_per_block < sum(lengths) + len(lengths) * tokens_per_block or not lengths


@given(st.integers(1, 5000), st.lists(st.integers(1, 5000)))
def test_warm_up_prompts_include_the_longest_allowed_and_none_longer(longest: int, kinds: list[int]) -> None:
    lengths = warm_up_lengths(longest, kinds)
    assert lengths[-1] == longest
    assert lengths == sorted(set(lengths))
    assert {kind for kind in kinds if kind <= longest} <= set(lengths)


@given(st.integers(1, 100), st.integers(0, 100))
def test_mixed_steps_are_single_tokens_and_a_prompt_within_the_limits(step_tokens: int, chunks: int) -> None:
    steps = mixed_steps(step_tokens, chunks)
    assert bool(steps) == (step_tokens > 2 and chunks > 1)
    for lengths in steps:
        assert sum(lengths) <= step_tokens
        assert len(lengths) <= chunks
        assert sorted(lengths)[-2:] == [1, 2]


class NotingExecutor:
    depth = 2
    most_choices = None

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.tables: list[tuple[list[int], list[tuple[int, ...]]]] = []
        self.released: list[Sequence] = []

    def launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> Finished:
        self.chunks += chunks
        for table in (chunk.sequence.table for chunk in chunks):
            self.tables.append((list(table.blocks), list(table.recent)))
        return Finished([ChunkResult(token_id=0) for _ in chunks])

    def release(self, sequence: Sequence) -> None:
        self.released.append(sequence)


def test_profiled_sequences_hold_their_own_blocks_and_release_them() -> None:
    executor, pool = NotingExecutor(), BlockPool(8, 4, window=Window(9, is_all=False))
    run(executor, pool, [5, 4, 1])
    assert executor.tables == [([0, 1], [(2,), (3,)]), ([4], [(5,)]), ([6], [(7,)])]
    assert pool.used_blocks == 0
    assert all(chunk.yields_token for chunk in executor.chunks)
    assert executor.released == [chunk.sequence for chunk in executor.chunks]
