"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from router.core.record import Record
from router.http.exchange import Exchange
from router.request.errors import respond_json
from router.request.identity import check_model_allowed, models_for
from router.request.routes import Route
from router.routing.models import Registry, Served


class Models:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def list(self, exchange: Exchange, record: Record) -> None:
        models = [_describe(each) for each in models_for(record.caller, self._registry)]
        respond_json(exchange, record, {"object": "list", "data": models})

    async def show(self, exchange: Exchange, record: Record) -> None:
        model = self._registry.find_any(record.values["id"])
        check_model_allowed(record.caller, model.name)
        respond_json(exchange, record, _describe(model))


def _describe(model: Served) -> dict[str, Any]:
    told = {"id": model.name, "object": "model", "created": model.created_s, "owned_by": "inflight"}
    context_tokens: int | None = getattr(model, "context_tokens", None)  # of those that generate text
    return told if context_tokens is None else {**told, "max_model_len": context_tokens}


def routes(models: Registry) -> list[Route]:
    api = Models(models)
    return [
        Route("GET", "/v1/models", api.list, "What is served", answer="ModelList"),
        Route(
            "GET", "/v1/models/{id}", api.show, "One model that is served", answer="Model", takes_rest=True
        ),
    ]
