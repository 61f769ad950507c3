"""Steps that are run before the first request: the largest, to measure memory, and others, to be compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence

if TYPE_CHECKING:
    from python_backend.engine.kv.blocks import BlockPool
    from python_backend.engine.steps.ports import Executor

# Up to 16, 32 and 64 rows are products of kernels of their own; a library has several for more than that.
_LENGTHS = (2, 17, 33, 65, 129, 257, 513, 1025)
_CHUNKS_OF_MIXED_STEPS = (2, 32)


def largest_step(max_step_tokens: int, max_batch_size: int, max_sequence_tokens: int) -> list[int]:
    """How long the chunks of the largest step are: as many as there may be, and all tokens there may be."""
    longest = max_sequence_tokens - 1
    chunks = min(max_batch_size, max_step_tokens)
    even, rest = divmod(min(max_step_tokens, chunks * longest), chunks)
    return [even + (index < rest) for index in range(chunks)]


def warm_up_lengths(longest: int, kinds: list[int]) -> list[int]:
    """Prompts that between them need every kernel: products differ by the number of rows.

    `kinds` are numbers of rows that matter to the model.
    """
    return sorted({length for length in (*_LENGTHS, *kinds) if length <= longest} | {longest})


def mixed_steps(max_step_tokens: int, most_chunks: int) -> list[list[int]]:
    """Steps of single tokens beside a prompt: few, and more than some of torch's kernels take for few."""
    sizes = {min(chunks, most_chunks, max_step_tokens - 1) for chunks in _CHUNKS_OF_MIXED_STEPS}
    return [[1] * (size - 1) + [2] for size in sorted(sizes) if size > 1]


def blocks_for(lengths: list[int], tokens_per_block: int) -> int:
    return sum(-(-length // tokens_per_block) for length in lengths)


def run(executor: Executor, pool: BlockPool, lengths: list[int]) -> None:
    """Runs one step of chunks so long, which all yield a token that is drawn, with all that takes memory."""
    chunks = []
    for key, length in enumerate(lengths):
        request = GenerationRequest(
            [0] * length,
            1,
            sampling=SamplingParams(top_p=0.9, seed=key),
            token_bias={0: 1.0},
            returns_log_probs=True,
        )
        sequence = Sequence(key, key, request, 1)
        if not pool.grow(sequence.table, length):
            raise RuntimeError(f"a pool of {pool.total_blocks} blocks has no room for steps of {lengths}")
        pool.reach(sequence.table, length)
        chunks.append(Chunk(sequence, 0, length, yields_token=True))
    executor.launch(chunks, []).results()
    for chunk in chunks:
        executor.release(chunk.sequence)
        pool.release(chunk.sequence.table)
