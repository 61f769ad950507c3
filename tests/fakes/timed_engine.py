"""The real engine over an executor that computes nothing, on a clock that goes by what a step costs."""

from __future__ import annotations

import random
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from python_backend.costs.step_cost import StepCost
from python_backend.engine.config import EngineConfig, EngineLimits
from python_backend.engine.engine import Engine
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import Chunk, StepPlan
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.ports import ChosenAtOnce, ChunkResult
from python_backend.wire.tiers import Tier

_WORDS = 100


@dataclass
class TimedExecutor:
    """With `depth` 2 a step may be launched while the last one runs, and its results are waited for."""

    cost: StepCost
    depth: int = 1
    most_choices: int | None = None
    now_s: float = 0.0
    free_s: float = 0.0

    def launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> TimedStep:
        self.free_s = max(self.free_s, self.now_s) + self.cost.step_ms(StepPlan(list(chunks)).shape) / 1000
        if self.depth == 1:
            self.now_s = self.free_s
        results = [ChunkResult(token_id=7 if chunk.yields_token else None) for chunk in chunks]
        return TimedStep(self, self.free_s, results)

    def release(self, sequence: Sequence) -> None:
        pass


@dataclass
class TimedStep(ChosenAtOnce):
    executor: TimedExecutor
    ends_s: float
    found: list[ChunkResult]

    @property
    def is_over(self) -> bool:
        return self.executor.now_s >= self.ends_s

    def results(self) -> list[ChunkResult]:
        self.executor.now_s = max(self.executor.now_s, self.ends_s)
        return self.found


@dataclass(frozen=True)
class Asked:
    at_s: float
    prompt_tokens: int
    output_tokens: int
    tier: Tier = Tier.STANDARD


@dataclass
class Course:
    """When each had its first and its last token, in seconds."""

    first_s: dict[int, float] = field(default_factory=dict)
    last_s: dict[int, float] = field(default_factory=dict)
    preemptions: int = 0


def play(
    asked: Row[Asked],
    cost: StepCost,
    blocks: int,
    places: int,
    step_tokens: int,
    whole_answers: bool,
    depth: int = 1,
    launches_late: bool = False,
    reuses_blocks: bool = False,
) -> Course:
    """Plays requests, in order of arrival, through the real engine; no prompt begins as another does.

    With `launches_late` its steps wait for newcomers as long as it says, as in its process.
    """
    executor = TimedExecutor(cost, depth)
    pool = BlockPool(blocks, 16)
    engine = Engine(
        EngineConfig(
            "",
            max_batch_size=places,
            max_step_tokens=step_tokens,
            guaranteed_no_evict=whole_answers,
            enable_kv_cache_reuse=reuses_blocks,
        ),
        EngineLimits(_WORDS, pool.capacity_tokens),
        pool,
        executor,
        now_ns=lambda: int(executor.now_s * 1e9),
    )
    course, coming = Course(), list(enumerate(asked))
    while coming or engine.has_work:
        if not engine.has_work:
            executor.now_s = max(executor.now_s, coming[0][1].at_s)
        while coming and coming[0][1].at_s <= executor.now_s + (engine.spare_s if launches_late else 0.0):
            key, each = coming.pop(0)
            executor.now_s = max(executor.now_s, each.at_s)
            prompt = random.Random(key).choices(range(_WORDS), k=each.prompt_tokens)
            engine.add(key, GenerationRequest(prompt, each.output_tokens, tier=each.tier))
        for event in engine.step():
            course.first_s.setdefault(event.key, executor.now_s)
            if event.is_last:
                course.last_s[event.key] = executor.now_s
    course.preemptions = engine.gauges().preemptions
    return course
