"""Latency objectives and the tuning of queue delays over HTTP, for the platform's administrators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from python_backend.wire.tiers import Tier, tier_named
from router.admin.bodies import NewestQuery
from router.admin.endpoint import Act, Asked, admin_route, listed
from router.control.objectives.commands import ModelStandings, ObjectiveCommands
from router.control.objectives.standing import Standing
from router.control.tuning.commands import Explanation, TuningCommands
from router.core.actions import Action
from router.core.manifest import MODEL_NAME
from router.core.objective import LEAST_S, MOST_S, Metric, Objective
from router.request.routes import Route
from router.tenants.records import NotFound
from router.tenants.tenancy import Tenancy

_Seconds = Annotated[float, Meta(ge=LEAST_S, le=MOST_S)]


class ObjectiveBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What 95 of 100 requests are to keep, in seconds; what is left out is not asked for any more.

    The first two are for models that generate text, the last for all others.
    """

    first_token_s: _Seconds | None = None
    inter_token_s: _Seconds | None = None
    end_to_end_s: _Seconds | None = None


@dataclass(frozen=True, slots=True)
class _Act:
    """One act on the objectives of the model, or of the one tier of it, that the path names."""

    commands: ObjectiveCommands
    asked: Asked

    @property
    def model(self) -> str:
        model = self.asked.values["model"]
        if not MODEL_NAME.fullmatch(model):
            raise self._not_found("model not found; GET /admin/objectives lists all models")
        return model

    @property
    def tier(self) -> Tier:
        try:
            return tier_named(self.asked.values["tier"])
        except ValueError:
            allowed = ", ".join(tier.label for tier in Tier)
            raise self._not_found(f"unknown tier; allowed: {allowed}") from None

    def _not_found(self, what: str) -> NotFound:
        with self.commands.look():  # who may not look is told that, whatever the name
            return NotFound(what)


def _list(act: _Act) -> dict[str, Any]:
    return {"object": "list", "data": [show_model(each) for each in act.commands.show()]}


def _show(act: _Act) -> dict[str, Any]:
    (found,) = act.commands.show(act.model)
    return show_model(found)


def _set(act: _Act) -> dict[str, Any]:
    body: ObjectiveBody = act.asked.given
    wanted = {metric: getattr(body, metric.field) for metric in Metric}
    (changed,) = act.commands.set(act.model, [act.tier], wanted)
    return _objective(changed)


def _clear(act: _Act) -> dict[str, Any]:
    act.commands.clear(act.model, [act.tier])
    return {"deleted": True}


def _clear_all(act: _Act) -> dict[str, Any]:
    act.commands.clear(act.model)
    return {"deleted": True}


def show_model(found: ModelStandings) -> dict[str, Any]:
    """What is measured of each tier beside what is asked of it, over all routers and their last minutes."""
    tiers: dict[str, dict[str, Any]] = {tier.label: {} for tier in Tier}
    for each in found.standings:
        tiers[each.tier.label][each.metric.value] = _standing(each)
    kind = None if found.kind is None else found.kind.value
    return {"object": "model.objectives", "model": found.model, "kind": kind, "tiers": tiers}


def _standing(each: Standing) -> dict[str, Any]:
    return {
        "objective_s": each.objective_s,
        "p50_s": each.p50_s,
        "p95_s": each.p95_s,
        "samples": each.samples,
        "attained": each.attained,
        "refused": each.refused,
        "verdict": each.verdict.value,
    }


def _objective(objective: Objective) -> dict[str, Any]:
    limits_s = {metric.field: objective.limit_s(metric) for metric in Metric}
    return {"object": "objective", "model": objective.model, "tier": objective.tier.label, **limits_s}


def _tuned_model(asked: Asked) -> str:
    model = asked.values["model"]
    if not MODEL_NAME.fullmatch(model):
        raise NotFound("model not found; GET /admin/tuning lists all models")
    return model


def _list_tuning(commands: TuningCommands, asked: Asked) -> dict[str, Any]:
    return {"object": "list", "data": [_explanation(each) for each in commands.explain()]}


def _explain_tuning(commands: TuningCommands, asked: Asked) -> dict[str, Any]:
    (found,) = commands.explain(_tuned_model(asked))
    return _explanation(found)


def _tuning_history(commands: TuningCommands, asked: Asked) -> dict[str, Any]:
    return listed(commands.history(_tuned_model(asked), asked.given.limit))


def _pause_tuning(commands: TuningCommands, asked: Asked, is_paused: bool) -> dict[str, Any]:
    model = _tuned_model(asked)
    commands.pause(model, is_paused)
    return {"object": "tuning.pause", "model": model, "paused": is_paused}


def _explanation(found: Explanation) -> dict[str, Any]:
    return {"object": "tuning", **asdict(found)}


def routes(tenancy: Tenancy) -> list[Route]:
    store = tenancy.store
    read = partial(admin_route, tenancy, Action.OBJECTIVE_READ)
    write = partial(admin_route, tenancy, Action.OBJECTIVE_WRITE)

    def on(do: Callable[[_Act], Any]) -> Act:
        return lambda asked: do(_Act(ObjectiveCommands(store, asked.actor), asked))

    def tune(do: Callable[[TuningCommands, Asked], Any]) -> Act:
        return lambda asked: do(TuningCommands(store, asked.actor), asked)

    model, tuned = "/admin/objectives/{model}", "/admin/tuning/{model}"
    tier = f"{model}/{{tier}}"
    return [
        read("GET", "/admin/objectives", "All objectives, with the measured values", on(_list)),
        read("GET", model, "The objectives of a model, with the measured values", on(_show)),
        write("PUT", tier, "Set the objective of a model and tier", on(_set), ObjectiveBody),
        write("DELETE", tier, "Remove the objective of a model and tier", on(_clear)),
        write("DELETE", model, "Remove all objectives of a model", on(_clear_all)),
        read("GET", "/admin/tuning", "The queue delays of all models, and the reasons for them",
              tune(_list_tuning)),
        read("GET", tuned, "The queue delays of a model, and the reasons for them", tune(_explain_tuning)),
        read("GET", f"{tuned}/history", "The changes of a model's queue delays, newest first",
              tune(_tuning_history), NewestQuery),
        write("POST", f"{tuned}/pause", "Pause the tuning of a model's queue delays",
              tune(partial(_pause_tuning, is_paused=True)), status=200),
        write("POST", f"{tuned}/resume", "Resume the tuning of a model's queue delays",
              tune(partial(_pause_tuning, is_paused=False)), status=200),
    ]  # fmt: skip
