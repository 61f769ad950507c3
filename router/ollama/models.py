"""GET /api/tags, /api/ps and /api/version, POST /api/show; and what is done by commands instead."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.embedding import ServedEmbedder
from router.ollama.bodies import ShowBody, read, served_name
from router.request.errors import respond_json
from router.request.identity import check_model_allowed, models_for
from router.request.routes import Route
from router.routing.models import ServedModel

if TYPE_CHECKING:
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.routes import Endpoint
    from router.routing.models import Registry, Served

# What a checkpoint does not tell is empty, as clients expect the names to be there.
_DETAILS = {
    **dict.fromkeys(("parent_model", "format", "family", "parameter_size", "quantization_level"), ""),
    "families": [],
}
_ADD = "an operator adds a model with `inflight release add` and serves it with `inflight release promote`"
_COMMANDS = {
    ("POST", "/api/pull"): f"models are not pulled here: {_ADD}",
    ("POST", "/api/push"): f"models are not pushed from here: {_ADD}",
    ("POST", "/api/create"): f"models are not created here: {_ADD}",
    ("POST", "/api/copy"): f"models are not copied here: {_ADD}, under any name",
    ("DELETE", "/api/delete"): "models are not deleted here: an operator takes one out of service with "
    "`inflight release unload`",
}


class OllamaModels:
    def __init__(self, models: Registry) -> None:
        self._models = models

    async def tags(self, exchange: Exchange, record: Record) -> None:
        models = [_described(each) for each in models_for(record.caller, self._models)]
        respond_json(exchange, record, {"models": models})

    async def show(self, exchange: Exchange, record: Record) -> None:
        body: ShowBody = read(ShowBody, exchange.request.body)
        model = self._models.find_any(served_name(body.model or body.name))
        check_model_allowed(record.caller, model.name)
        told = {"modelfile": "", "parameters": "", "template": "", **_described(model), **_abilities(model)}
        respond_json(exchange, record, told)

    async def version(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, {"version": version("inflight")})


def _described(model: Served) -> dict[str, Any]:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": datetime.fromtimestamp(model.created_s, timezone.utc),
        "size": 0,  # as for the details
        "digest": hashlib.sha256(f"{model.name}@{model.version}".encode()).hexdigest(),
        "details": _DETAILS,
    }


def _abilities(model: Served) -> dict[str, Any]:
    if isinstance(model, ServedEmbedder):
        sizes = {"context_length": model.limits.max_tokens, "embedding_length": model.limits.dimensions}
        can = ["embedding"]
    else:
        sizes = {"context_length": model.context_tokens} if isinstance(model, ServedModel) else {}
        can = ["completion", "tools"] if getattr(model, "template", None) else ["completion"]
    # Clients look for sizes behind the name of an architecture.
    info = {"general.architecture": "inflight", **{f"inflight.{name}": each for name, each in sizes.items()}}
    return {"capabilities": can, "model_info": info}


def _refused(message: str) -> Endpoint:
    async def refuse(exchange: Exchange, record: Record) -> None:
        raise InflightError(ErrorKind.UNSUPPORTED, message)

    return refuse


def routes(models: Registry) -> list[Route]:
    api = OllamaModels(models)
    get = partial(Route, "GET")
    return [
        get("/api/tags", api.tags, "What is served, by Ollama's API", answer="OllamaModels"),
        get("/api/ps", api.tags, "The same: all of it is loaded", answer="OllamaModels"),
        get("/api/version", api.version, "The version of this server"),
        Route("POST", "/api/show", api.show, "One model that is served", ShowBody, takes=""),
        *(
            Route(method, path, _refused(message), "Not done here: says which command does it", takes="")
            for (method, path), message in _COMMANDS.items()
        ),
    ]
