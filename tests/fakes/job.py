"""Stands in for a request of any kind: does what a test says while it holds its permit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from python_backend.wire.errors import InflightError
from router.admission.demand import Need
from router.core.answer_text import Answered
from router.request.permit import Permit, Stoppable
from router.routing.models import Served, ServedModel
from router.safety.guard import Safety
from tests.fakes.pipeline import FakePipeline


class FakeJob:
    def __init__(self, need: Need, act: Callable[[Permit], Awaitable[None]], model: str = "tiny") -> None:
        self.served: Served = ServedModel(model, FakePipeline())
        self.need = need
        self._act = act
        self.told_of: list[InflightError] = []
        self.settled = 0

    async def check(self, safety: Safety) -> None:
        pass

    async def run(self, permit: Permit) -> None:
        await self._act(permit)

    def fail(self, error: InflightError) -> None:
        self.told_of.append(error)

    async def settle(self) -> None:
        self.settled += 1

    def keep(self) -> None:
        pass

    def prompts(self) -> Sequence[str]:
        return ()

    def told(self) -> Sequence[str]:
        return ()

    def answered(self) -> Answered | None:
        return None

    def repeat(
        self, served: Served, attach: Callable[[Stoppable], None]
    ) -> Coroutine[Any, Any, Answered] | None:
        return None
