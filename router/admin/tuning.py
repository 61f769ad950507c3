"""What was decided about queue delays and why, over HTTP, for the platform's administrators."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from router.admin.endpoint import admin_route, listed
from router.admin.release_bodies import NewestQuery
from router.control.tuning.commands import TuningCommands
from router.core.manifest import MODEL_NAME
from router.tenants.records import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.admin.endpoint import Act, Asked
    from router.control.tuning.commands import Explanation
    from router.request.routes import Route
    from router.tenants.tenancy import Tenancy


def _model(asked: Asked) -> str:
    model = asked.values["model"]
    if not MODEL_NAME.fullmatch(model):
        raise NotFound("there is no model of this name; GET /admin/tuning lists those that there are")
    return model


def _list(commands: TuningCommands, asked: Asked) -> dict[str, Any]:
    return {"object": "list", "data": [_shown(each) for each in commands.explain()]}


def _explain(commands: TuningCommands, asked: Asked) -> dict[str, Any]:
    (found,) = commands.explain(_model(asked))
    return _shown(found)


def _history(commands: TuningCommands, asked: Asked) -> dict[str, Any]:
    return listed(commands.history(_model(asked), asked.given.limit))


def _pause(commands: TuningCommands, asked: Asked, is_paused: bool) -> dict[str, Any]:
    model = _model(asked)
    commands.pause(model, is_paused)
    return {"object": "tuning.pause", "model": model, "paused": is_paused}


def _shown(found: Explanation) -> dict[str, Any]:
    return {"object": "tuning", **asdict(found)}


def routes(tenancy: Tenancy) -> list[Route]:
    store = tenancy.store
    route = partial(admin_route, tenancy)

    def on(do: Callable[[TuningCommands, Asked], Any]) -> Act:
        return lambda asked: do(TuningCommands(store, asked.actor), asked)

    model = "/admin/tuning/{model}"
    return [
        route("GET", "/admin/tuning", "The queue delays of all models, and why they are so", on(_list)),
        route("GET", model, "The queue delays of a model, and why they are so", on(_explain)),
        route("GET", f"{model}/history", "What was changed about them, the newest first", on(_history),
              NewestQuery),
        route("POST", f"{model}/pause", "Leave the queue delays of a model as they are",
              on(partial(_pause, is_paused=True)), status=200),
        route("POST", f"{model}/resume", "Tune the queue delays of a model again",
              on(partial(_pause, is_paused=False)), status=200),
    ]  # fmt: skip
