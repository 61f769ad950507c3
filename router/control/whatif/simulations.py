"""Simulations that operators ask this router for: computed by a program beside it, one at a time."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from python_backend.costs.step_cost import StepCost
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tiers import Tier
from router.control.side_program import SideProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from python_backend.wire.engine_report import EngineReport
    from router.core.objective import Objective
    from router.routing.replicas import Fleet, Replica

log = logging.getLogger(__name__)

WHAT_IF = (sys.executable, "-m", "simulator.what_if")
LIMIT_S = 120.0
_EXIT_USAGE = 2
# Of the order of a model of some billion weights on one GPU.
_EXAMPLE_COST = StepCost(12.0, 0.12, 0.25)


@dataclass(frozen=True, slots=True)
class Engine:
    """What one replica is like; `is_example` where no engine of the model has told its cost yet."""

    cost: StepCost
    slots: int = 64
    step_tokens: int = 512
    kv_tokens: int = 40_960
    block_tokens: int = 16
    holds_whole_answers: bool = False
    is_example: bool = False

    @classmethod
    def of(cls, report: EngineReport) -> Engine | None:
        """With all that it can take, whatever objectives allow now; None while it knows not its cost."""
        kv_tokens = report.total_blocks * report.tokens_per_block
        if report.learned is None or not kv_tokens:
            return None
        return cls(
            report.learned.cost,
            report.most_batch_size,
            max(report.most_step_tokens, report.most_batch_size),
            kv_tokens,
            report.tokens_per_block,
            report.holds_whole_answers,
        )


class Simulations:
    """The replicas of the `fleet` tell what their engines have learned of themselves."""

    def __init__(
        self,
        fleet: Fleet,
        objective_of: Callable[[str, Tier], Objective],
        command: Sequence[str] = WHAT_IF,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._fleet = fleet
        self._objective_of = objective_of
        self._command = command
        self.limit_s = limit_s
        self._is_busy = False

    def engine_of(self, model: str) -> Engine:
        for replica in self._open_replicas(model):
            if replica.report is not None and (found := Engine.of(replica.report)) is not None:
                return found
        return Engine(_EXAMPLE_COST, is_example=True)

    def replicas_of(self, model: str) -> int:
        """Of its release that has the most."""
        found = Counter(each.manifest.version for each in self._open_replicas(model))
        return max(found.values(), default=1)

    def _open_replicas(self, model: str) -> list[Replica]:
        sets = [each for each in self._fleet.sets.values() if each.manifest.model == model]
        return [replica for each in sets for replica in each.replicas if replica.is_open]

    def objectives_of(self, model: str) -> dict[str, dict[str, float | None]]:
        """Those that hold now, by tier."""
        found = {tier.label: self._objective_of(model, tier) for tier in Tier}
        return {
            tier: {"first_token_s": each.first_token_s, "inter_token_s": each.inter_token_s}
            for tier, each in found.items()
            if each.first_token_s is not None or each.inter_token_s is not None
        }

    async def run(self, engine: Engine, question: Mapping[str, Any], left: asyncio.Event) -> dict[str, Any]:
        """What came of it; who has `left` is told nothing, and nothing more is computed for them."""
        if self._is_busy:
            raise InflightError(
                ErrorKind.RATE_LIMITED, "a simulation is already running: this router runs one at a time"
            )
        self._is_busy = True
        try:
            return await self._ask({**question, "engine": _shape(engine)}, left)
        finally:
            self._is_busy = False

    async def _ask(self, question: Mapping[str, Any], left: asyncio.Event) -> dict[str, Any]:
        asked = await asyncio.to_thread(msgspec.json.encode, question)
        program = await SideProgram.start(self._command, is_asked=True)
        asking = asyncio.ensure_future(program.ask(asked))
        leaving = asyncio.ensure_future(left.wait())
        try:
            await asyncio.wait((asking, leaving), timeout=self.limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                why = f"it took longer than {self.limit_s:g} s: try fewer requests, or a lower rate"
                raise InflightError(ErrorKind.INVALID_REQUEST, f"the simulation was stopped: {why}")
            status, told, complaint = asking.result()
        finally:
            leaving.cancel()
            program.kill()
            await asyncio.wait((asking,))
        if status == _EXIT_USAGE:
            raise InflightError(ErrorKind.INVALID_REQUEST, complaint)
        if status < 0:  # ended by its own limits
            raise InflightError(ErrorKind.INVALID_REQUEST, "the simulation took too much time or memory")
        if status != 0:
            log.error("a simulation failed: %s", complaint[-2000:])
            raise InflightError(ErrorKind.INTERNAL, "the simulation failed")
        answer: dict[str, Any] = msgspec.json.decode(told)
        return answer


def _shape(engine: Engine) -> dict[str, Any]:
    shape = asdict(engine)
    del shape["is_example"]
    return shape
