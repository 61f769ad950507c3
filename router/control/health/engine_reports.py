"""Asks every engine once a second for its report, and sends it the objectives that it is to meet."""

from __future__ import annotations

import asyncio
import logging
import time
from math import inf
from typing import TYPE_CHECKING, Any

from python_backend.wire.tiers import Tier
from router.core.manifest import Kind
from router.grpc.status import GrpcError, StatusCode
from router.triton.messages import configure_request, read_engine_report, report_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from python_backend.wire.engine_report import EngineReport
    from router.core.objective import Objective
    from router.routing.replicas import Fleet, Replica

log = logging.getLogger(__name__)

_PERIOD_S = 1.0
_TIMEOUT_S = 1.0
# How long an engine is not asked that does not know the question, or not told what it did not take.
_PAUSE_S = 60.0


class EngineReports:
    """`replica.report` is what its engine said at `replica.reported_s`; None where it says nothing.

    An engine that does not answer in time keeps the report it had: how old it is tells that.
    """

    def __init__(
        self,
        fleet: Fleet,
        objective_of: Callable[[str, Tier], Objective],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._objective_of = objective_of
        self._clock = clock
        self._unasked_until_s: dict[Replica, float] = {}
        self._untold_until_s: dict[Replica, float] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            began_s = self._clock()
            try:
                await self.ask_all()
            except Exception:
                log.exception("the engines' reports could not be read; retrying in a moment")
            await asyncio.sleep(max(0.0, began_s + _PERIOD_S - self._clock()))

    async def ask_all(self) -> None:
        """One round; an engine that does not answer in time is skipped."""
        engines = self._engines()
        for pauses in (self._unasked_until_s, self._untold_until_s):
            for gone in pauses.keys() - engines:
                del pauses[gone]
        now_s = self._clock()
        due = []
        for replica in engines:
            if not replica.is_up:
                replica.report, replica.reported_s = None, -inf  # what comes back is another
            elif self._unasked_until_s.get(replica, -inf) <= now_s:
                due.append(self._ask(replica))
        await asyncio.gather(*due)

    def _engines(self) -> set[Replica]:
        groups = [each for each in self._fleet.sets.values() if each.manifest.kind is Kind.TEXT]
        return {replica for group in groups if group.manifest.engine for replica in group.replicas}

    async def _ask(self, replica: Replica) -> None:
        try:
            report = await _report_of(replica)
        except (GrpcError, ValueError) as error:
            log.debug("%r: its engine sent no report: %s", replica, error)
            return
        if not replica.is_up:
            return
        before, replica.report = replica.report, report
        replica.reported_s = self._clock()
        if before is not None and report is not None and report.step_count > before.step_count:
            replica.last_step_s = replica.reported_s
        if report is None:
            self._unasked_until_s[replica] = self._clock() + _PAUSE_S
        else:
            await self._tell_objectives(replica, report)

    async def _tell_objectives(self, replica: Replica, report: EngineReport) -> None:
        """Those of the engine's own model: the steps of its adapters are the same."""
        if replica.manifest.base:
            return
        wanted = {tier: self._inter_token_ms(replica.manifest.model, tier) for tier in Tier}
        has_them = report.inter_token_ms == {tier.label: ms for tier, ms in wanted.items() if ms is not None}
        if has_them or self._untold_until_s.get(replica, -inf) > self._clock():
            return
        try:
            await _send(replica, configure_request(replica.manifest.engine, wanted))
        except GrpcError as error:
            log.warning("%r: its objectives could not be sent to its engine: %s", replica, error)
            self._untold_until_s[replica] = self._clock() + _PAUSE_S
        else:
            log.info("%r: the inter-token objectives are now %s", replica, _described(wanted))

    def _inter_token_ms(self, model: str, tier: Tier) -> float | None:
        limit_s = self._objective_of(model, tier).inter_token_s
        return None if limit_s is None else limit_s * 1000


async def _report_of(replica: Replica) -> EngineReport | None:
    for response in await _send(replica, report_request(replica.manifest.engine)):
        if (report := read_engine_report(response)) is not None:
            return report
    return None


async def _send(replica: Replica, request: Any) -> list[Any]:
    """All responses to it; raises GrpcError. It is no work of the replica's."""
    stream = replica.connection.infer(request, _TIMEOUT_S)
    responses = []
    try:
        async for message in stream:
            if message.error_message:
                raise GrpcError(StatusCode.UNKNOWN, message.error_message)
            responses.append(message.infer_response)
    finally:
        stream.cancel()
    return responses


def _described(targets: Mapping[Tier, float | None]) -> str:
    told = [f"{tier.label} {ms:g} ms" for tier, ms in targets.items() if ms is not None]
    return ", ".join(told) or "none"
