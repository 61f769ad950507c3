"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from router.api.errors import respond_json

if TYPE_CHECKING:
    from router.http.exchange import Exchange
    from router.record import Record
    from router.registry import Registry, ServedModel

PREFIX = "/v1/models/"


class ListModels:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        models = [_describe(model) for model in self._registry]
        respond_json(exchange, record, {"object": "list", "data": models})


class ShowModel:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        model = self._registry.find(exchange.request.path.removeprefix(PREFIX))
        respond_json(exchange, record, _describe(model))


def _describe(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.created_s, "owned_by": "inflight"}
