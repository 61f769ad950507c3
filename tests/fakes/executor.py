"""A model-free executor that keeps a paged cache of token ids and notices when the paging lies to it."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Row

from python_backend.engine.blocks import BlockPool
from python_backend.engine.engine import Engine, EngineConfig, EngineLimits
from python_backend.engine.execution import ChunkResult
from python_backend.engine.guiding import GuideCompiler
from python_backend.engine.scheduling.plan import BlockCopy, Chunk
from python_backend.engine.sequence import Sequence
from python_backend.wire.errors import InflightError
from tests.fakes.guides import FakeGuide

VOCABULARY = 97


def next_token(token_ids: Row[int], seed: int = 0, index: int = 0) -> int:
    """The fake model: what follows depends on every token before it."""
    return zlib.crc32(bytes([seed % 256, index, *token_ids])) % VOCABULARY


def continuation(prompt_ids: Row[int], count: int, seed: int = 0, index: int = 0) -> list[int]:
    """What the fake model answers to a prompt when it is alone in the world."""
    token_ids = list(prompt_ids)
    for _ in range(count):
        token_ids.append(next_token(token_ids, seed, index))
    return token_ids[len(prompt_ids) :]


def logits_row(token_ids: Row[int]) -> bytes:
    """One number stands for the scores after these tokens."""
    return struct.pack("<f", zlib.crc32(bytes(token_ids)) % 10_000)


class FakeExecutor:
    """Reads each sequence's context back through its block table, as attention would.

    Sequences whose prompt holds `broken_token` have no finite scores, and a pass with one whose prompt holds
    `deadly_token` raises, after it has written some of the cache. `fail_next` makes a pass raise once, and
    passes of more than `most_tokens` run out of memory. `refusals` tells by key who alone cannot go on.
    """

    def __init__(
        self, pool: BlockPool, broken_token: int | None = None, deadly_token: int | None = None
    ) -> None:
        self._slots: list[int | None] = [None] * pool.capacity_tokens
        self._tokens_per_block = pool.tokens_per_block
        self._broken_token = broken_token
        self._deadly_token = deadly_token
        self.most_tokens: int | None = None
        self.refusals: dict[int, InflightError] = {}
        self.fail_next = False
        self.passes = 0
        self.steps: list[list[Chunk]] = []
        self.copies: list[BlockCopy] = []

    @property
    def computed_tokens(self) -> int:
        return sum(chunk.count for chunks in self.steps for chunk in chunks)

    def execute(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> list[ChunkResult]:
        self.passes += 1
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("out of luck")
        if self.most_tokens is not None and sum(chunk.count for chunk in chunks) > self.most_tokens:
            raise MemoryError
        for copy in copies:
            self._copy(copy)
        self._check_writers(chunks)
        for chunk in chunks:
            for position, token_id in enumerate(chunk.token_ids, chunk.start):
                self._slots[self._slot(chunk.sequence, position)] = token_id
            if self._deadly_token in chunk.sequence.request.prompt_ids:
                raise RuntimeError(f"token {self._deadly_token} is too much")
        self.steps.append(list(chunks))
        self.copies += copies
        return [self._result(chunk) for chunk in chunks]

    def _copy(self, copy: BlockCopy) -> None:
        size = self._tokens_per_block
        source, target = copy.source * size, copy.target * size
        self._slots[target : target + size] = self._slots[source : source + size]

    def _check_writers(self, chunks: Row[Chunk]) -> None:
        size = self._tokens_per_block
        writers = Counter(
            block
            for chunk in chunks
            for block in chunk.sequence.table.blocks[chunk.start // size : -(-chunk.end // size)]
        )
        assert all(count == 1 for count in writers.values()), "two sequences write into one block"

    def _result(self, chunk: Chunk) -> ChunkResult:
        sequence, request = chunk.sequence, chunk.sequence.request
        context = [self._slots[self._slot(sequence, position)] for position in range(chunk.end)]
        assert context == sequence.tokens[: chunk.end], "the cache does not hold this sequence's tokens"
        result = ChunkResult(error=self.refusals.get(sequence.key))
        if request.returns_context_logits:
            ends = range(chunk.start, min(chunk.end, sequence.prompt_tokens))
            result.context_logits = b"".join(logits_row(sequence.tokens[: end + 1]) for end in ends)
        if chunk.yields_token and self._broken_token not in request.prompt_ids:
            self._choose(sequence, result)
        return result

    def _choose(self, sequence: Sequence, result: ChunkResult) -> None:
        request = sequence.request
        if isinstance(sequence.guide, FakeGuide):
            result.token_id = sequence.guide.next_token()
            result.ends_guide = result.token_id is None
        else:
            result.token_id = next_token(sequence.tokens, request.sampling.seed, sequence.index)
        if request.returns_log_probs:
            result.log_prob = -float(sequence.generated_tokens + 1)
        if request.returns_generation_logits:
            result.generation_logits = logits_row(sequence.tokens)

    def _slot(self, sequence: Sequence, position: int) -> int:
        block = sequence.table.blocks[position // self._tokens_per_block]
        return block * self._tokens_per_block + position % self._tokens_per_block


class FakeClock:
    """Each look at it takes a microsecond."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000

    def __call__(self) -> int:
        self.now_ns += 1_000
        return self.now_ns


def fake_engine(
    total_blocks: int = 64,
    tokens_per_block: int = 4,
    max_batch_size: int = 8,
    max_step_tokens: int = 32,
    max_sequence_tokens: int | None = None,
    guaranteed_no_evict: bool = False,
    static_batching: bool = False,
    enable_kv_cache_reuse: bool = True,
    broken_token: int | None = None,
    deadly_token: int | None = None,
    compiler: GuideCompiler | None = None,
    now_ns: Callable[[], int] | None = None,
) -> tuple[Engine, FakeExecutor]:
    pool = BlockPool(total_blocks, tokens_per_block)
    config = EngineConfig(
        checkpoint_dir="",
        tokens_per_block=tokens_per_block,
        max_batch_size=max_batch_size,
        max_step_tokens=max_step_tokens,
        guaranteed_no_evict=guaranteed_no_evict,
        static_batching=static_batching,
        check_blocks=True,
        enable_kv_cache_reuse=enable_kv_cache_reuse,
    )
    executor = FakeExecutor(pool, broken_token, deadly_token)
    limits = EngineLimits(VOCABULARY, max_sequence_tokens or pool.capacity_tokens)
    return Engine(config, limits, pool, executor, compiler, now_ns or FakeClock()), executor
