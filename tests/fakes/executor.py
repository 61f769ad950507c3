"""A model-free executor that keeps a paged cache of token ids and notices when the paging lies to it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence as Row

from python_backend.engine.blocks import BlockPool
from python_backend.engine.engine import Engine, EngineConfig, EngineLimits
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence

VOCABULARY = 97


def next_token(token_ids: Row[int], seed: int = 0) -> int:
    """The fake model: what follows depends on every token before it."""
    return zlib.crc32(bytes([seed % 256, *token_ids])) % VOCABULARY


def continuation(prompt_ids: Row[int], count: int, seed: int = 0) -> list[int]:
    """What the fake model answers to a prompt when it is alone in the world."""
    token_ids = list(prompt_ids)
    for _ in range(count):
        token_ids.append(next_token(token_ids, seed))
    return token_ids[len(prompt_ids) :]


class FakeExecutor:
    """Reads each sequence's context back through its block table, as attention would.

    Sequences whose prompt holds `broken_token` have no finite scores; `fail_next` makes a step raise.
    """

    def __init__(self, pool: BlockPool, broken_token: int | None = None) -> None:
        self._slots: list[int | None] = [None] * pool.capacity_tokens
        self._tokens_per_block = pool.tokens_per_block
        self._broken_token = broken_token
        self.fail_next = False
        self.steps: list[list[Chunk]] = []

    def execute(self, chunks: Row[Chunk]) -> list[int | None]:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("out of luck")
        self.steps.append(list(chunks))
        for chunk in chunks:
            for position, token_id in enumerate(chunk.token_ids, chunk.start):
                self._slots[self._slot(chunk.sequence, position)] = token_id
        return [self._answer(chunk) for chunk in chunks if chunk.yields_token]

    def _answer(self, chunk: Chunk) -> int | None:
        context = [self._slots[self._slot(chunk.sequence, position)] for position in range(chunk.end)]
        assert context == chunk.sequence.tokens, "the cache does not hold this sequence's tokens"
        if self._broken_token in chunk.sequence.request.prompt_ids:
            return None
        return next_token(chunk.sequence.tokens, chunk.sequence.request.sampling.seed)

    def _slot(self, sequence: Sequence, position: int) -> int:
        block = sequence.table.blocks[position // self._tokens_per_block]
        return block * self._tokens_per_block + position % self._tokens_per_block


def fake_engine(
    total_blocks: int = 64,
    tokens_per_block: int = 4,
    max_batch_size: int = 8,
    max_step_tokens: int = 32,
    max_sequence_tokens: int | None = None,
    guaranteed_no_evict: bool = False,
    static_batching: bool = False,
    broken_token: int | None = None,
) -> tuple[Engine, FakeExecutor]:
    pool = BlockPool(total_blocks, tokens_per_block)
    config = EngineConfig(
        checkpoint_dir="",
        tokens_per_block=tokens_per_block,
        max_batch_size=max_batch_size,
        max_step_tokens=max_step_tokens,
        guaranteed_no_evict=guaranteed_no_evict,
        static_batching=static_batching,
    )
    executor = FakeExecutor(pool, broken_token)
    limits = EngineLimits(VOCABULARY, max_sequence_tokens or pool.capacity_tokens)
    return Engine(config, limits, pool, executor), executor
