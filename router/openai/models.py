"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from router.core.actions import Action
from router.core.embedding import ServedEmbedder
from router.core.record import Record
from router.http.exchange import Exchange
from router.request.errors import respond_json
from router.request.identity import check_model_allowed, models_for
from router.request.routes import Route
from router.routing.models import Registry, Served, ServedModel, ServedTensors


class Models:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def list(self, exchange: Exchange, record: Record) -> None:
        models = [describe(each) for each in models_for(record.caller, self._registry)]
        respond_json(exchange, record, {"object": "list", "data": models})

    async def show(self, exchange: Exchange, record: Record) -> None:
        model = self._registry.find_any(record.values["id"])
        check_model_allowed(record.caller, model.name)
        respond_json(exchange, record, describe(model))


def describe(model: Served) -> dict[str, Any]:
    """As OpenAI and vLLM tell it, and what the model can be asked for."""
    told = {"id": model.name, "object": "model", "created": model.created_s, "owned_by": "inflight"}
    told |= {"root": model.name, "parent": None, "release": str(model.version)}
    has_template = embeds = sees = False
    if isinstance(model, ServedModel):
        sees = model.vision is not None
        told |= {"root": model.parent or model.name, "parent": model.parent}
        has_template = model.template is not None
        told |= {"max_model_len": model.context_tokens, "context_length": model.context_tokens}
    elif isinstance(model, ServedEmbedder):
        embeds = not model.limits.is_reranker
        told |= {"max_model_len": model.limits.max_tokens, "context_length": model.limits.max_tokens}
        if embeds:
            told["dimensions"] = model.limits.dimensions
    told["capabilities"] = {
        "chat": has_template,
        "completions": isinstance(model, ServedModel),
        "responses": has_template,
        "tools": has_template,
        "structured_outputs": has_template,
        "embeddings": embeds,
        "rerank": isinstance(model, ServedEmbedder),
        "tensors": isinstance(model, ServedTensors),
        "vision": sees,
    }
    return told


def routes(models: Registry) -> list[Route]:
    api = Models(models)
    return [
        Route(
            "GET", "/v1/models", api.list, "The served models", answer="ModelList", action=Action.MODEL_READ
        ),
        Route(
            "GET",
            "/v1/models/{id}",
            api.show,
            "One served model",
            answer="Model",
            takes_rest=True,
            action=Action.MODEL_READ,
        ),
    ]
