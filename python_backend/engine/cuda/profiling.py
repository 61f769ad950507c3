"""The largest step that an engine's limits allow, to be run once before memory is shared out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence

if TYPE_CHECKING:
    from python_backend.engine.execution import Executor


def largest_step(max_step_tokens: int, max_batch_size: int, max_sequence_tokens: int) -> list[int]:
    """How long the chunks of the largest step are: as many as there may be, and all tokens there may be."""
    longest = max_sequence_tokens - 1
    chunks = min(max_batch_size, max_step_tokens)
    even, rest = divmod(min(max_step_tokens, chunks * longest), chunks)
    return [even + (index < rest) for index in range(chunks)]


def blocks_for(lengths: list[int], tokens_per_block: int) -> int:
    return sum(-(-length // tokens_per_block) for length in lengths)


def run(executor: Executor, lengths: list[int], tokens_per_block: int) -> None:
    """Runs one step of chunks so long, which all yield a token that is drawn."""
    chunks, next_block = [], 0
    for key, length in enumerate(lengths):
        sampling = SamplingParams(top_p=0.9, seed=key)
        sequence = Sequence(key, key, GenerationRequest([0] * length, 1, sampling=sampling), 1)
        blocks = blocks_for([length], tokens_per_block)
        sequence.table.blocks.extend(range(next_block, next_block + blocks))
        next_block += blocks
        chunks.append(Chunk(sequence, 0, length, yields_token=True))
    executor.launch(chunks, []).results()
    for chunk in chunks:
        executor.release(chunk.sequence)
