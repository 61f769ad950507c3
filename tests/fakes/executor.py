"""A model-free executor that keeps a paged cache of token ids and notices when the paging lies to it."""

from __future__ import annotations

import random
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import replace
from functools import partial

from python_backend.engine.config import EngineConfig, EngineLimits
from python_backend.engine.engine import Engine
from python_backend.engine.guides.ports import GuideCompiler
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.host_blocks import BlockMove, HostBlocks
from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.kv.window_claims import Window
from python_backend.engine.scheduling.plan import Chunk, StepPlan
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.ports import ChunkResult
from python_backend.engine.steps.speculator import Speculator
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
    """Reads each sequence's context back through all of its tables, as attention would.

    With `depth` 2 it stands for a device: what it is told at a launch is all it knows, a token that its
    sequence does not have yet is the last that it chose itself, and what it chose is told with the results.

    Sequences whose prompt holds `broken_token` have no finite scores, and a pass with one whose prompt holds
    `deadly_token` raises, after it has written some of the cache. `fail_next` makes a pass raise once,
    `fail_next_choice` a choice of tokens that had to wait, and passes of more than `most_tokens` run out of
    memory. With `loses_results` nobody learns how a step ended. `refusals` tells by key who alone cannot go
    on.
    """

    def __init__(
        self,
        pool: BlockPool,
        broken_token: int | None = None,
        deadly_token: int | None = None,
        depth: int = 1,
    ) -> None:
        self._cells: list[int | None] = [None] * (pool.total_blocks * pool.tokens_per_block)
        self._host_cells: dict[int, list[int | None]] = {}
        self._tokens_per_block = pool.tokens_per_block
        self._window = pool.window
        self._broken_token = broken_token
        self._deadly_token = deadly_token
        self.depth = depth
        self.most_choices: int | None = None
        self.most_tokens: int | None = None
        self.refusals: dict[int, InflightError] = {}
        self.fail_next = False
        self.fail_next_choice = False
        self.choices = 0
        self.loses_results = False
        self.passes = 0
        self.steps: list[list[Chunk]] = []
        self.collected_steps = 0
        self.copies: list[BlockCopy] = []
        self.last_tokens: dict[Sequence, int | None] = {}
        self.released: list[Sequence] = []

    @property
    def computed_tokens(self) -> int:
        return sum(chunk.count for chunks in self.steps for chunk in chunks)

    def launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> FakeLaunched:
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
            self._write(chunk)
            if self._deadly_token in chunk.sequence.request.prompt_ids:
                raise RuntimeError(f"token {self._deadly_token} is too much")
        self.steps.append(list(chunks))
        self.copies += copies
        launched = FakeLaunched(self, chunks, [self._context(chunk) for chunk in chunks])
        for chunk in chunks:
            self.last_tokens[chunk.sequence] = None
        if not any(self._awaits_history(chunk) for chunk in chunks):
            launched.choose_now()
        return launched

    def _awaits_history(self, chunk: Chunk) -> bool:
        sequence = chunk.sequence
        known = chunk.end - len(chunk.drafts)
        return chunk.yields_token and sequence.needs_history and len(sequence.tokens) < known

    def move(self, saves: Row[BlockMove], loads: Row[BlockMove]) -> None:
        size = self._tokens_per_block
        for each in saves:
            self._host_cells[each.on_host] = self._cells[each.on_device * size : (each.on_device + 1) * size]
        for each in loads:
            cells = self._host_cells[each.on_host]
            self._cells[each.on_device * size : (each.on_device + 1) * size] = cells

    def release(self, sequence: Sequence) -> None:
        self.last_tokens.pop(sequence, None)
        self.released.append(sequence)

    def _copy(self, copy: BlockCopy) -> None:
        size = self._tokens_per_block
        source, target = copy.source * size, copy.target * size
        self._cells[target : target + size] = self._cells[source : source + size]

    def _check_writers(self, chunks: Row[Chunk]) -> None:
        size = self._tokens_per_block
        writers = Counter(
            block
            for chunk in chunks
            for index in range(chunk.start // size, -(-chunk.end // size))
            for block in chunk.sequence.table.at(index)
        )
        assert all(count == 1 for count in writers.values()), "two sequences write into one block"

    def _write(self, chunk: Chunk) -> None:
        token_ids: Row[int | None] = chunk.token_ids
        if chunk.start == len(chunk.sequence.tokens):
            assert self.depth > 1, "a token is not there"
            token_ids = [self.last_tokens[chunk.sequence]]
        assert len(token_ids) == chunk.count, "a token to come is not alone"
        for position, token_id in enumerate(token_ids, chunk.start):
            for cell in self._cells_of(chunk.sequence, position):
                self._cells[cell] = token_id

    def _context(self, chunk: Chunk) -> list[int]:
        """What lies before the window is not looked at, and as it should be for all that is known."""
        if self._window is None:
            return self._seen(chunk, 0, 0)
        first = max(0, chunk.start + 1 - self._window.tokens)
        whole = 0 if self._window.is_all else 1
        seen = [self._seen(chunk, whole + number, first) for number in range(self._window.tables)]
        views = seen if self._window.is_all else [self._seen(chunk, 0, 0), *seen]
        assert all(view == views[0] for view in views), "two tables hold other tokens"
        return views[0]

    def _seen(self, chunk: Chunk, table: int, first: int) -> list[int]:
        size = self._tokens_per_block
        cells: list[int | None] = []
        for index in range(first // size, -(-chunk.end // size)):
            block = chunk.sequence.table.at(index)[table]
            cells += self._cells[block * size : (block + 1) * size]
        skipped = first - first % size
        seen = cells[first - skipped : chunk.end - skipped]
        return [*chunk.sequence.tokens[:first], *(-1 if token_id is None else token_id for token_id in seen)]

    def choose(self, chunk: Chunk, context: list[int]) -> int | None:
        sequence, known = chunk.sequence, chunk.end - len(chunk.drafts)
        if not chunk.yields_token or sequence.finish_reason is not None:
            return None
        if self._broken_token in sequence.request.prompt_ids:
            return None
        if sequence.needs_history:
            assert len(sequence.tokens) == known, "a token is chosen without those before it"
        context = context[:known]
        if isinstance(sequence.guide, FakeGuide):
            return sequence.guide.next_token()
        return next_token(context, sequence.request.sampling.seed, sequence.index)

    def _cells_of(self, sequence: Sequence, position: int) -> list[int]:
        """One in each table."""
        index, place = divmod(position, self._tokens_per_block)
        return [block * self._tokens_per_block + place for block in sequence.table.at(index)]


class FakeLaunched:
    def __init__(self, executor: FakeExecutor, chunks: Row[Chunk], contexts: list[list[int]]) -> None:
        self._executor = executor
        self._chunks = list(chunks)
        self._contexts = contexts
        self._token_ids: list[int | None] | None = None

    @property
    def is_computed(self) -> bool:
        return True

    @property
    def is_chosen(self) -> bool:
        return self._token_ids is not None

    @property
    def is_over(self) -> bool:
        return self.is_chosen

    def choose(self) -> None:
        assert not self.is_chosen
        if self._executor.fail_next_choice:
            self._executor.fail_next_choice = False
            raise MemoryError
        for chunk in self._chunks:
            if chunk.yields_token and chunk.sequence.finish_reason is None:
                assert not chunk.sequence.awaits_guide, "a token is chosen before its guide knows"
        self.choose_now()

    def choose_now(self) -> None:
        executor = self._executor
        self._token_ids = [executor.choose(*pair) for pair in zip(self._chunks, self._contexts, strict=True)]
        executor.choices += 1
        for chunk, token_id in zip(self._chunks, self._token_ids, strict=True):
            if chunk.sequence in executor.last_tokens:
                # Of several tokens the host says which is the last.
                executor.last_tokens[chunk.sequence] = None if chunk.drafts else token_id

    def results(self) -> list[ChunkResult]:
        assert self._token_ids is not None, "nobody had the tokens chosen"
        if self._executor.loses_results:
            raise RuntimeError("the device is lost")
        self._executor.collected_steps += 1
        return [
            self._result(*each) for each in zip(self._chunks, self._contexts, self._token_ids, strict=True)
        ]

    def _result(self, chunk: Chunk, context: list[int], token_id: int | None) -> ChunkResult:
        sequence, request = chunk.sequence, chunk.sequence.request
        if sequence.finish_reason is None:
            known = chunk.end - len(chunk.drafts)
            assert context[:known] == sequence.tokens[:known].tolist(), "the cache holds other tokens"
        result = ChunkResult(token_id, error=self._executor.refusals.get(sequence.key))
        result.behind_drafts = [
            partial(self._behind, sequence, context[: chunk.end - left])
            for left in reversed(range(len(chunk.drafts)))
        ]
        if chunk.yields_token:
            result.ends_guide = isinstance(sequence.guide, FakeGuide) and sequence.guide.next_token() is None
        if request.returns_context_logits:
            ends = range(chunk.start, min(chunk.end, sequence.prompt_tokens))
            result.context_logits = b"".join(logits_row(context[: end + 1]) for end in ends)
        if token_id is not None and request.returns_log_probs:
            result.log_prob = -float(chunk.end - sequence.prompt_tokens + 1)
        if request.returns_prompt_log_probs:
            following = sequence.tokens[chunk.start + 1 : min(chunk.end + 1, sequence.prompt_tokens)]
            result.prompt_log_probs = [[(each, -1.0)] for each in following]
        if token_id is not None and request.top_log_probs is not None:
            result.top_log_probs = [(token_id, -1.0)] * (1 + request.top_log_probs)
        if token_id is not None and request.returns_generation_logits:
            result.generation_logits = logits_row(context)
        return result

    def _behind(self, sequence: Sequence, context: list[int]) -> ChunkResult:
        assert context == sequence.tokens.tolist(), "a token behind a wrong draft is asked for"
        return ChunkResult(next_token(context, sequence.request.sampling.seed, sequence.index))


class FakeSpeculator(Speculator):
    """Knows what comes, and is wrong now and then."""

    def __init__(self, pool: BlockPool, most_choices: int | None, dice: random.Random) -> None:
        super().__init__(pool, most_choices)
        self._dice = dice
        for rows in (16, 32):
            self._costs.observe(rows, 0.0, 0, 0.0)

    def took(self, plan: StepPlan, took_ms: float) -> None:
        """Guesses cost nothing, whatever the clock says."""

    def _guess(self, sequence: Sequence) -> tuple[list[int], float]:
        super()._guess(sequence)
        coming = continuation(
            sequence.tokens, self._dice.randrange(6), sequence.request.sampling.seed, sequence.index
        )
        return [each if self._dice.random() < 0.8 else 0 for each in coming], 0.9


class FakeClock:
    """Each look at it takes a microsecond, or what is said."""

    def __init__(self, look_ns: int = 1_000) -> None:
        self.now_ns = 1_000_000
        self._look_ns = look_ns

    def __call__(self) -> int:
        self.now_ns += self._look_ns
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
    depth: int = 1,
    compiler: GuideCompiler | None = None,
    now_ns: Callable[[], int] | None = None,
    host_blocks: int = 0,
    window: Window | None = None,
    guesses: random.Random | None = None,
) -> tuple[Engine, FakeExecutor]:
    """With `guesses` many are made, and some of them are right."""
    host = HostBlocks(host_blocks, lambda *moves: executor.move(*moves)) if host_blocks else None
    if window is not None:
        window = replace(window, step_tokens=depth * max_step_tokens)
    pool = BlockPool(total_blocks, tokens_per_block, host, window)
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
    executor = FakeExecutor(pool, broken_token, deadly_token, depth)
    limits = EngineLimits(VOCABULARY, max_sequence_tokens or min(pool.capacity_tokens, 1024))
    engine = Engine(config, limits, pool, executor, compiler, now_ns or FakeClock())
    if guesses is not None:
        executor.most_choices = max_batch_size if depth > 1 else None
        engine._speculator = engine._answers._speculator = FakeSpeculator(
            pool, executor.most_choices, guesses
        )
    return engine, executor
