"""The fake executor on a device that is as slow as is said."""

from __future__ import annotations

from collections.abc import Sequence as Row

from python_backend.costs.step_cost import StepCost
from python_backend.engine.config import EngineConfig, EngineLimits
from python_backend.engine.engine import Engine
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.scheduling.plan import Chunk, StepPlan
from python_backend.engine.steps.cost_memory import CostMemory
from python_backend.engine.steps.ports import ChunkResult
from tests.fakes.executor import VOCABULARY, FakeClock, FakeExecutor, FakeLaunched


class TimedExecutor(FakeExecutor):
    """Steps run one after the other; whoever asks for results waits until theirs are there."""

    def __init__(self, pool: BlockPool, depth: int, cost: StepCost, clock: FakeClock) -> None:
        super().__init__(pool, depth=depth)
        self.cost = cost
        self.clock = clock
        self.step_ms: list[float] = []
        self._free_ns = 0

    def launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> TimedLaunched:
        launched = super().launch(chunks, copies)
        took_ms = self.cost.step_ms(StepPlan(list(chunks)).shape)
        self.step_ms.append(took_ms)
        self._free_ns = max(self._free_ns, self.clock.now_ns) + round(took_ms * 1e6)
        return TimedLaunched(self, launched, self._free_ns)


class TimedLaunched(FakeLaunched):
    def __init__(self, executor: TimedExecutor, launched: FakeLaunched, over_ns: int) -> None:
        self._timed = executor
        self._launched = launched
        self._over_ns = over_ns

    @property
    def is_computed(self) -> bool:
        return self._timed.clock.now_ns >= self._over_ns

    @property
    def is_chosen(self) -> bool:
        return self._launched.is_chosen

    @property
    def is_over(self) -> bool:
        return self.is_chosen and self.is_computed

    def choose(self) -> None:
        self._launched.choose()

    def results(self) -> list[ChunkResult]:
        self._timed.clock.now_ns = max(self._timed.clock.now_ns, self._over_ns)
        return self._launched.results()


def timed_engine(
    cost: StepCost,
    depth: int = 1,
    max_batch_size: int = 16,
    max_step_tokens: int = 256,
    memory: CostMemory | None = None,
) -> tuple[Engine, TimedExecutor]:
    pool, clock = BlockPool(2000, 16), FakeClock()
    config = EngineConfig("", max_batch_size=max_batch_size, max_step_tokens=max_step_tokens)
    executor = TimedExecutor(pool, depth, cost, clock)
    limits = EngineLimits(VOCABULARY, 2000)
    return Engine(config, limits, pool, executor, None, clock, memory=memory), executor
