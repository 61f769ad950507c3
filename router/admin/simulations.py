"""What if: a recorded hour or a trace under two policies, simulated for the platform's administrators."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from python_backend.costs.step_cost import StepCost
from router.control.whatif.recorded_traffic import arrivals_in, hours_of
from router.control.whatif.simulations import Engine
from router.core.actions import Action
from router.core.objective import LEAST_S, MOST_S
from router.request.decoding import decode, decode_query, invalid
from router.request.errors import respond_json
from router.request.routes import Route

if TYPE_CHECKING:
    from router.control.whatif.simulations import Simulations
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.store.database import StoreAccess
    from router.telemetry.recent_requests import RecentRequests

_Seconds = Annotated[float, Meta(ge=LEAST_S, le=MOST_S)]
_Share = Annotated[float, Meta(gt=0, le=1_000_000)]
_Ms = Annotated[float, Meta(ge=0, le=100_000)]
_Name = Annotated[str, Meta(max_length=64)]
_Tier = Literal["interactive", "standard", "batch"]


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class TraceBody(_Body, frozen=True, kw_only=True):
    """One of: an hour that was recorded, by when it began; a file of requests as CSV or JSON lines, as its
    text; or neither, for generated requests. `tiers` are shares for requests that do not tell theirs."""

    recorded_from_s: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    text: str | None = None
    name: Annotated[str, Meta(max_length=200)] = ""
    tiers: dict[_Tier, _Share] = {}


class TermsBody(_Body, frozen=True, kw_only=True):
    first_token_s: _Seconds | None = None
    inter_token_s: _Seconds | None = None


class VariantBody(_Body, frozen=True, kw_only=True):
    """What is left out is as the model is served now."""

    policy: Literal["objectives", "first-come", "cap", "oracle"] = "objectives"
    replicas: Annotated[int, Meta(ge=1, le=64)] | None = None
    objectives: dict[_Tier, TermsBody] | None = None


class EngineBody(_Body, frozen=True, kw_only=True):
    """Milliseconds of a step: fixed, by prompt token, by sequence, by 1,000 cached tokens; and its limits."""

    base_ms: _Ms
    prefill_token_ms: _Ms
    decode_sequence_ms: _Ms
    kv_kilotoken_ms: _Ms = 0.0
    slots: Annotated[int, Meta(ge=1, le=4096)] = 64
    step_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] = 512
    kv_tokens: Annotated[int, Meta(ge=16, le=1 << 30)] = 40_960
    block_tokens: Annotated[int, Meta(ge=1, le=1024)] = 16

    def value(self) -> Engine:
        given = msgspec.structs.asdict(self)
        cost = StepCost(**{name: given.pop(name) for name in (*given,) if name.endswith("_ms")})
        if cost.base_ms <= 0:
            raise invalid("engine.base_ms: expected more than 0")
        if self.step_tokens < self.slots:
            raise invalid("engine.step_tokens: expected at least engine.slots")
        if self.kv_tokens < 16 * self.block_tokens:
            raise invalid("engine.kv_tokens: expected at least 16 blocks of engine.block_tokens")
        return Engine(cost, **given)


class SimulationBody(_Body, frozen=True, kw_only=True):
    """A trace of requests to a model, and one to four ways to serve it, beside each other."""

    model: _Name
    trace: TraceBody = TraceBody()
    variants: Annotated[list[VariantBody], Meta(min_length=1, max_length=4)]
    engine: EngineBody | None = None
    rate: Annotated[float, Meta(gt=0, le=100)] = 1.0
    duration_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None


class HoursQuery(_Body, frozen=True, kw_only=True):
    model: _Name


class SimulationDoor:
    def __init__(self, simulations: Simulations, store: StoreAccess, recent: RecentRequests) -> None:
        self._simulations = simulations
        self._store = store
        self._recent = recent
        self._decoder = msgspec.json.Decoder(SimulationBody)

    async def list_hours(self, exchange: Exchange, record: Record) -> None:
        model = decode_query(exchange.request.query, HoursQuery).model
        hours = await self._store.read(
            lambda connection: hours_of(connection, model, time.time()), record.tenant
        )
        engine = self._simulations.engine_of(model)
        about = {
            "object": "list",
            "model": model,
            "replicas": self._simulations.replicas_of(model),
            "objectives": self._simulations.objectives_of(model),
            "engine": asdict(engine),
        }
        respond_json(exchange, record, {**about, "data": [each._asdict() for each in hours]})

    async def simulate(self, exchange: Exchange, record: Record) -> None:
        body = decode(self._decoder, exchange.request.body or b"{}")
        left = asyncio.Event()
        exchange.on_disconnect(left.set)
        engine = self._simulations.engine_of(body.model) if body.engine is None else body.engine.value()
        question = {
            "trace": await self._trace(body, record.tenant),
            "variants": [self._variant(body.model, each) for each in body.variants],
            "rate": body.rate,
            "duration_s": body.duration_s,
        }
        answer = await self._simulations.run(engine, question, left)
        shown = {"object": "simulation", "model": body.model, "rate": body.rate, "engine": asdict(engine)}
        respond_json(exchange, record, {**shown, **answer})

    async def _trace(self, body: SimulationBody, tenant: str) -> dict[str, Any]:
        given = body.trace
        if given.recorded_from_s is not None and given.text is not None:
            raise invalid("trace: expected recorded_from_s or text, not both")
        if given.text is not None:
            return {"name": given.name or "uploaded", "text": given.text, "tiers": given.tiers}
        if given.recorded_from_s is None:
            return {"tiers": given.tiers}
        began_s = given.recorded_from_s
        found = await self._store.read(
            lambda connection: arrivals_in(connection, body.model, began_s), tenant
        )
        tiers = self._recent.tiers()
        # The first is at 0, as in every trace.
        first_s = found[0].started_s if found else 0.0
        rows = [
            (
                each.started_s - first_s,
                max(each.prompt_tokens, 1),
                max(each.completion_tokens, 1),
                each.tenant,
                tiers.get(each.request_id),
            )
            for each in found
        ]
        return {"name": "recorded", "rows": rows, "tiers": given.tiers}

    def _variant(self, model: str, given: VariantBody) -> dict[str, Any]:
        objectives: Any = given.objectives
        if objectives is None:
            objectives = self._simulations.objectives_of(model)
        replicas = given.replicas or self._simulations.replicas_of(model)
        return {"policy": given.policy, "replicas": replicas, "objectives": objectives}


def routes(simulations: Simulations, store: StoreAccess, recent: RecentRequests) -> list[Route]:
    door = SimulationDoor(simulations, store, recent)
    return [
        Route("GET", "/admin/simulations/hours", door.list_hours,
              "Hours of a model's traffic that can be simulated, and how it is served now",
              action=Action.SIMULATION_RUN, query=HoursQuery),
        Route("POST", "/admin/simulations", door.simulate,
              "Simulate a recorded hour or a trace under one or several policies", SimulationBody,
              action=Action.SIMULATION_RUN),
    ]  # fmt: skip
