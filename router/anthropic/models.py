"""GET /v1/models and GET /v1/models/{id} for clients that name a version of Anthropic's API."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from router.request.error_shapes import ANTHROPIC_VERSION
from router.request.errors import respond_json
from router.request.identity import check_model_allowed, models_for

if TYPE_CHECKING:
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.routes import Endpoint, Route
    from router.routing.models import Registry, Served


class Models:
    """Answers those clients in their shape, all others as `usual` does."""

    def __init__(self, usual: Endpoint, models: Registry) -> None:
        self._usual = usual
        self._models = models

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        if ANTHROPIC_VERSION not in exchange.request.headers:
            return await self._usual(exchange, record)
        record.id_header = "request-id"
        if (name := record.values.get("id")) is not None:
            model = self._models.find_any(name)
            check_model_allowed(record.caller, model.name)
            return respond_json(exchange, record, _described(model))
        data = [_described(each) for each in models_for(record.caller, self._models)]
        ends = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        page = {"data": data, "has_more": False, "first_id": ends[0], "last_id": ends[1]}
        return respond_json(exchange, record, page)


def _described(model: Served) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created_s, timezone.utc),
        "lifecycle": "active",
        "max_input_tokens": getattr(model, "context_tokens", None),  # of those that generate text
    }


def for_both(routes: list[Route], models: Registry) -> list[Route]:
    return [replace(route, endpoint=Models(route.endpoint, models)) for route in routes]
