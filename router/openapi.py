"""GET /openapi.json and GET /docs: the API told by the same structs that check it.

Both are open to everybody: they tell what the documentation tells, and nothing of this deployment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from router import front_page
from router.answer_schemas import ANSWERS, TEXT
from router.anthropic import bodies as anthropic_bodies
from router.core.actions import Action, Reach
from router.core.tenant import PLATFORM_SCOPES
from router.docs_page import docs_page
from router.html_page import respond_page
from router.ollama import bodies as ollama_bodies
from router.ollama.dialect import NDJSON
from router.openai.chat import MESSAGE_NEUTRAL, NEUTRAL
from router.openai.completions import COMPLETION_NEUTRAL
from router.request.error_shapes import shape_for
from router.request.errors import respond_json
from router.request.routes import JSON, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.identity import Doorkeeper
    from router.routing.models import Registry

_REFERENCE = "#/components/schemas/{name}"
# Readers of such a description take each event for an object, whatever its data are.
EVENTS = "text/event-stream"
# What of a body is not honoured yet.
_NEUTRAL = {
    "ChatBody": NEUTRAL,
    "CompletionBody": COMPLETION_NEUTRAL,
    "Message": MESSAGE_NEUTRAL,
    "MessagesBody": anthropic_bodies.NEUTRAL,
    "CountBody": anthropic_bodies.NEUTRAL,
    "OllamaChatBody": ollama_bodies.NEUTRAL,
    "OllamaPromptBody": ollama_bodies.NEUTRAL,
    "OllamaMessage": ollama_bodies.NEUTRAL,
    "OllamaOptions": ollama_bodies.OPTIONS_NEUTRAL,
}


def openapi(routes: Sequence[Route], asks_for_keys: bool = True) -> dict[str, Any]:
    """While no keys are asked for, nothing is said of them: programs would not ask without one."""
    bodies = [route.body for route in routes if route.body is not None]
    _, schemas = msgspec.json.schema_components(bodies, ref_template=_REFERENCE)
    for name, neutral in _NEUTRAL.items():
        _narrow(schemas[name], neutral)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, asks_for_keys)
    components: dict[str, Any] = {"schemas": {**schemas, **ANSWERS}}
    if asks_for_keys:
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Inflight", "version": front_page.API_VERSION},
        "paths": paths,
        "components": components,
    }


def _narrow(schema: dict[str, Any], neutral: dict[str, tuple[Any, ...]]) -> None:
    """What is not honoured yet takes its neutral values and nothing else."""
    for name, values in neutral.items():
        if name in schema["properties"]:
            schema["properties"][name] = {"enum": [None, *values], "description": "Not supported yet."}


def _operation(endpoint: Route, asks_for_keys: bool) -> dict[str, Any]:
    shape = shape_for(endpoint.path, {}).schema
    problem = {"schema": {"$ref": _REFERENCE.format(name=shape)}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            str(endpoint.status): {"description": "The answer", "content": _answer(endpoint)},
            "default": {"description": "The error", "content": {JSON: problem}},
        },
    }
    if endpoint.body is not None:
        body = {"schema": {"$ref": _REFERENCE.format(name=endpoint.body.__name__)}}
        operation["requestBody"] = {"required": True, "content": {endpoint.takes or JSON: body}}
    if parameters := [
        *_path_parameters(endpoint),
        *_query_parameters(endpoint),
        *_header_parameters(endpoint),
    ]:
        operation["parameters"] = parameters
    if endpoint.scope is not None and asks_for_keys:
        operation["security"] = [{"key": []}, {"x-api-key": []}]
        operation["description"] = f"A key needs the scope `{endpoint.scope.value}`{_of_whom(endpoint)}."
    return operation


def _of_whom(endpoint: Route) -> str:
    is_platforms = endpoint.action.reach is Reach.PLATFORM and endpoint.scope not in PLATFORM_SCOPES
    return " and a platform admin as its user" if is_platforms else ""


def _answer(endpoint: Route) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for answer in endpoint.answer.split(" or "):
        if "/" in answer:
            content[answer] = {"schema": {} if answer in (EVENTS, NDJSON) else TEXT}
        elif answer in ANSWERS:
            content[JSON] = {"schema": {"$ref": _REFERENCE.format(name=answer)}}
        else:
            content[JSON] = {"schema": {"type": "object"}}
    if endpoint.streams:
        content[EVENTS] = {"schema": {}}
    return content


def _path_parameters(endpoint: Route) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in endpoint.names]


def _query_parameters(endpoint: Route) -> list[dict[str, Any]]:
    """One for each field of the struct; a query cannot say null, so it is not among what is taken."""
    if endpoint.query is None:
        return []
    (found,), parts = msgspec.json.schema_components([endpoint.query], ref_template=_REFERENCE)
    schema = parts.get(endpoint.query.__name__, found)
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(field)}
        for name, field in schema["properties"].items()
    ]


def _header_parameters(endpoint: Route) -> list[dict[str, Any]]:
    headers = ("Idempotency-Key", "Last-Event-ID") if endpoint.streams else ("Idempotency-Key",)
    found = headers if endpoint.takes_keys else ()
    return [{"name": name, "in": "header", "required": False, "schema": TEXT} for name in found]


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in field.get("anyOf", ()) if kind.get("type") != "null"]
    return kinds[0] if len(kinds) == 1 else field


class Description:
    """Made when it is first asked for, and kept: with keys, and without."""

    def __init__(self, routes: Sequence[Route], doorkeeper: Doorkeeper | None) -> None:
        self._routes = routes
        self._doorkeeper = doorkeeper
        self._documents: dict[bool, dict[str, Any]] = {}
        self._pages: dict[bool, bytes] = {}

    async def show_openapi(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, self._document(self._asks_for_keys))

    async def show_docs(self, exchange: Exchange, record: Record) -> None:
        asks = self._asks_for_keys
        if asks not in self._pages:
            self._pages[asks] = docs_page(self._document(asks))
        respond_page(exchange, record, self._pages[asks])

    @property
    def _asks_for_keys(self) -> bool:
        return self._doorkeeper is None or self._doorkeeper.asks_for_keys

    def _document(self, asks_for_keys: bool) -> dict[str, Any]:
        if asks_for_keys not in self._documents:
            self._documents[asks_for_keys] = openapi(self._routes, asks_for_keys)
        return self._documents[asks_for_keys]


def routes(
    others: Sequence[Route], models: Registry | None = None, doorkeeper: Doorkeeper | None = None
) -> list[Route]:
    """The first page, and the description of all other routes and of itself."""
    every: list[Route] = [*others]
    shown = Description(every, doorkeeper)
    own = [
        *front_page.routes(models, doorkeeper),
        Route("GET", "/openapi.json", shown.show_openapi, "This API as an OpenAPI document",
              action=Action.ABOUT_READ),
        Route("GET", "/docs", shown.show_docs, "This API as a page", None, "text/html",
              action=Action.ABOUT_READ),
    ]  # fmt: skip
    every += own
    return own
