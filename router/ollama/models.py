"""GET /api/tags, /api/ps and /api/version, POST /api/show; and what is done by commands instead."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.actions import Action
from router.core.embedding import ServedEmbedder
from router.ollama.bodies import ShowBody, read, served_name
from router.request.errors import respond_json
from router.request.identity import check_model_allowed, models_for
from router.request.routes import Route
from router.routing.models import ServedModel

if TYPE_CHECKING:
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.routing.models import Registry, Served

# The release of Ollama whose API is spoken here.
OLLAMA_VERSION = "0.12.0"
# What a checkpoint does not tell is empty, as clients expect the names to be there.
_UNKNOWN = ("parent_model", "format", "family", "parameter_size", "quantization_level")
_DETAILS = {**dict.fromkeys(_UNKNOWN, ""), "families": []}
_MANAGED = {"pull": "pulled", "push": "pushed", "create": "created", "copy": "copied", "delete": "deleted"}
_BY_OPERATORS = (
    "models are not {done} here: an operator adds one with `inflight release add`, serves it with "
    "`inflight release promote`, and unloads it with `inflight release unload`"
)


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
        respond_json(exchange, record, {**_described(model), **_abilities(model)})


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
    can, sizes = list[str](), dict[str, int]()
    if isinstance(model, ServedEmbedder):
        can = [] if model.limits.is_reranker else ["embedding"]
        sizes = {"context_length": model.limits.max_tokens, "embedding_length": model.limits.dimensions}
    elif isinstance(model, ServedModel):
        can = ["completion"] if model.template is None else ["completion", "tools"]
        can += ["vision"] if model.vision is not None else []
        can += ["thinking"] if model.template is not None and model.template.thinks else []
        sizes = {"context_length": model.context_tokens}
    # Clients look for sizes behind the name of an architecture.
    info = {"general.architecture": "inflight", **{f"inflight.{name}": each for name, each in sizes.items()}}
    return {"capabilities": can, "model_info": info}


async def show_version(exchange: Exchange, record: Record) -> None:
    """Answers anybody, as clients ask before they send a key; some refuse servers that are too old."""
    respond_json(exchange, record, {"version": OLLAMA_VERSION})


async def _refuse(exchange: Exchange, record: Record) -> None:
    message = _BY_OPERATORS.format(done=_MANAGED[record.route.removeprefix("/api/")])
    raise InflightError(ErrorKind.UNSUPPORTED, message)


def routes(models: Registry) -> list[Route]:
    api = OllamaModels(models)
    get = partial(Route, "GET", action=Action.MODEL_READ)
    return [
        get("/api/tags", api.tags, "The served models, in Ollama's API", answer="OllamaModels"),
        get(
            "/api/ps",
            api.tags,
            "The loaded models: the same list, as all of them are loaded",
            answer="OllamaModels",
        ),
        get("/api/version", show_version, "A version of Ollama, always the same", action=Action.ABOUT_READ),
        Route(
            "POST", "/api/show", api.show, "One served model", ShowBody, takes="", action=Action.MODEL_READ
        ),
        *(_managed(verb) for verb in _MANAGED),
    ]


def _managed(verb: str) -> Route:
    method = "DELETE" if verb == "delete" else "POST"
    return Route(
        method,
        f"/api/{verb}",
        _refuse,
        "Not supported here: the error names the commands that do it",
        takes="",
        action=Action.MODEL_READ,
    )
