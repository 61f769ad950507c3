"""An engine whose steps compute nothing and take the time that a given cost says: a GPU's, say.

Everything but the model is the real one: batches, blocks, chunks of prompts, budgets, and what the engine
learns of its steps. So whatever stands around it can be tried under load at the rates of any machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from collections.abc import Sequence as Row

from python_backend.costs.step_cost import StepCost
from python_backend.engine.config import EngineConfig, EngineLimits
from python_backend.engine.engine import Engine
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.scheduling.plan import Chunk, StepPlan
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.ports import ChosenAtOnce, ChunkResult
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters

# Position i of an answer has the token 500 + i % 50, so that what is missing can be told from the text. In
# the tokenizers of language models these are frequent words and syllables, so that each has a text of its
# own: special tokens, single bytes and parts of characters are elsewhere.
_FIRST_ID = 500
_CYCLE = 50
_VOCABULARY = 1 << 20  # more than any tokenizer has
_KV_TOKENS = 1 << 18
_SEQUENCE_TOKENS = 1 << 15
# The least of its time that noise leaves a step.
_LEAST = 0.1


class PacedExecutor:
    """Steps end one after the other, each as long after the last as it costs; the host's work is hidden.

    `noise` is the standard deviation of a step's time, as a share of it: the same for the same seed.
    """

    depth = 2
    most_choices = None

    def __init__(
        self,
        cost: StepCost,
        noise: float = 0.0,
        seed: int = 0,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cost = cost
        self._noise = noise
        self._chance = random.Random(seed)
        self._now_s = now_s
        self._sleep = sleep
        self._free_s = 0.0  # all that was launched is over then

    def launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> PacedStep:
        took_s = self._cost.step_ms(StepPlan(list(chunks)).shape) / 1000
        if self._noise:
            took_s *= max(_LEAST, self._chance.gauss(1, self._noise))
        self._free_s = max(self._free_s, self._now_s()) + took_s
        return PacedStep(self, self._free_s, [_result(chunk) for chunk in chunks])

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept for a sequence."""

    def is_past(self, at_s: float) -> bool:
        return self._now_s() >= at_s

    def wait_until(self, at_s: float) -> None:
        if (left_s := at_s - self._now_s()) > 0:
            self._sleep(left_s)


class PacedStep(ChosenAtOnce):
    def __init__(self, executor: PacedExecutor, ends_s: float, results: list[ChunkResult]) -> None:
        self._executor = executor
        self._ends_s = ends_s
        self._results = results

    @property
    def is_over(self) -> bool:
        return self._executor.is_past(self._ends_s)

    def results(self) -> list[ChunkResult]:
        self._executor.wait_until(self._ends_s)
        return self._results


def _result(chunk: Chunk) -> ChunkResult:
    request = chunk.sequence.request
    if (
        request.asks_of_prompt
        or request.returns_log_probs
        or request.top_log_probs is not None
        or request.returns_generation_logits
    ):
        text = "this engine computes nothing, so it has neither scores nor probabilities"
        return ChunkResult(error=InflightError(ErrorKind.UNSUPPORTED, text))
    if not chunk.yields_token:
        return ChunkResult()
    token_id = _FIRST_ID + (chunk.end - chunk.sequence.prompt_tokens) % _CYCLE
    return ChunkResult(token_id if token_id != request.end_id else _FIRST_ID + _CYCLE)


def load_paced(parameters: EngineParameters) -> Engine:
    settings = parameters.on("cuda" if parameters.inflight_device == "cuda" else "cpu")
    kv_tokens = parameters.max_tokens_in_paged_kv_cache or _KV_TOKENS
    pool = BlockPool(max(1, kv_tokens // settings.tokens_per_block), settings.tokens_per_block)
    most_tokens = parameters.inflight_max_sequence_tokens or _SEQUENCE_TOKENS
    config = EngineConfig(
        checkpoint_dir="",
        tokens_per_block=settings.tokens_per_block,
        max_batch_size=settings.max_batch_size,
        max_step_tokens=settings.max_step_tokens,
        static_batching=parameters.static_batching,
        check_blocks=parameters.inflight_check_blocks,
        guaranteed_no_evict=parameters.guaranteed_no_evict,
        enable_kv_cache_reuse=parameters.enable_kv_cache_reuse,
    )
    executor = PacedExecutor(parameters.inflight_paced_cost, parameters.inflight_paced_noise)
    limits = EngineLimits(_VOCABULARY, min(most_tokens, pool.capacity_tokens))
    return Engine(config, limits, pool, executor)
