"""GET /openapi.json and GET /docs: the API told by the same structs that check it."""

from __future__ import annotations

import html
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from router.answer_schemas import ANSWERS, TEXT
from router.anthropic import bodies as anthropic_bodies
from router.ollama import bodies as ollama_bodies
from router.ollama.dialect import NDJSON
from router.openai.bodies import MESSAGE_NEUTRAL, NEUTRAL
from router.request.error_shapes import shape_for
from router.request.errors import respond_json
from router.request.routes import JSON, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.record import Record
    from router.http.exchange import Exchange

_REFERENCE = "#/components/schemas/{name}"
# Readers of such a description take each event for an object, whatever its data are.
EVENTS = "text/event-stream"
# What of a body is not honoured yet.
_NEUTRAL = {
    "ChatBody": NEUTRAL,
    "CompletionBody": NEUTRAL,
    "Message": MESSAGE_NEUTRAL,
    "MessagesBody": anthropic_bodies.NEUTRAL,
    "CountBody": anthropic_bodies.NEUTRAL,
    "OllamaChatBody": ollama_bodies.NEUTRAL,
    "OllamaPromptBody": ollama_bodies.NEUTRAL,
    "OllamaMessage": ollama_bodies.NEUTRAL,
    "OllamaOptions": ollama_bodies.OPTIONS_NEUTRAL,
}


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    bodies = [route.body for route in routes if route.body is not None]
    _, schemas = msgspec.json.schema_components(bodies, ref_template=_REFERENCE)
    for name, neutral in _NEUTRAL.items():
        _narrow(schemas[name], neutral)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Inflight", "version": version("inflight")},
        "paths": paths,
        "components": {
            "schemas": {**schemas, **ANSWERS},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _narrow(schema: dict[str, Any], neutral: dict[str, tuple[Any, ...]]) -> None:
    """What is not honoured yet takes its neutral values and nothing else."""
    for name, values in neutral.items():
        if name in schema["properties"]:
            schema["properties"][name] = {"enum": [None, *values], "description": "Not honoured yet."}


def _operation(endpoint: Route) -> dict[str, Any]:
    shape = shape_for(endpoint.path, {}).schema
    problem = {"schema": {"$ref": _REFERENCE.format(name=shape)}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            str(endpoint.status): {"description": "The answer", "content": _answer(endpoint)},
            "default": {"description": "What is wrong", "content": {JSON: problem}},
        },
    }
    if endpoint.body is not None:
        body = {"schema": {"$ref": _REFERENCE.format(name=endpoint.body.__name__)}}
        operation["requestBody"] = {"required": True, "content": {endpoint.takes or JSON: body}}
    if parameters := [*_path_parameters(endpoint), *_query_parameters(endpoint)]:
        operation["parameters"] = parameters
    if endpoint.scope is not None:
        operation["security"] = [{"key": []}, {"x-api-key": []}]
        operation["description"] = f"A key needs the scope `{endpoint.scope.value}`."
    return operation


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


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in field.get("anyOf", ()) if kind.get("type") != "null"]
    return kinds[0] if len(kinds) == 1 else field


class Description:
    """Made when it is first asked for, and kept."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._document: dict[str, Any] = {}
        self._page = b""

    @property
    def document(self) -> dict[str, Any]:
        self._document = self._document or openapi(self._routes)
        return self._document

    async def show_openapi(self, exchange: Exchange, record: Record) -> None:
        respond_json(exchange, record, self.document)

    async def show_docs(self, exchange: Exchange, record: Record) -> None:
        self._page = self._page or page(self._routes, self.document)
        headers = [
            ("content-type", "text/html; charset=utf-8"),
            ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'"),
            ("x-request-id", record.request_id),
        ]
        exchange.respond(200, self._page, headers)


def routes(others: Sequence[Route]) -> list[Route]:
    """The description of all other routes, and of itself."""
    every: list[Route] = [*others]
    shown = Description(every)
    own = [
        Route("GET", "/openapi.json", shown.show_openapi, "This description, for programs", scope=None),
        Route("GET", "/docs", shown.show_docs, "This description, for people", None, "text/html", scope=None),
    ]
    every += own
    return own


_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Inflight {version}</title>
<meta name="viewport" content="width=device-width"><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
code{{background:#8882;padding:.1em .3em;border-radius:.2em}} td,th{{text-align:left;vertical-align:top;
padding:.2rem .8rem .2rem 0}} h2{{margin-top:2.5rem}} @media(prefers-color-scheme:dark){{
body{{background:#111;color:#ddd}}}}</style></head><body><h1>Inflight {version}</h1>
<p>An OpenAI-compatible API: point a client's base URL at <code>/v1</code>. Clients of Anthropic and Ollama
take this address itself. For programs: <code>/openapi.json</code>.</p>{sections}</body></html>"""


def page(routes: Sequence[Route], document: dict[str, Any]) -> bytes:
    schemas = document["components"]["schemas"]
    sections = "".join(_section(route, schemas) for route in routes)
    return _PAGE.format(version=version("inflight"), sections=sections).encode()


def _section(endpoint: Route, schemas: dict[str, Any]) -> str:
    title = f"<h2><code>{endpoint.method} {html.escape(endpoint.path)}</code></h2>"
    text = f"<p>{html.escape(endpoint.summary)}.</p>"
    if endpoint.body is None:
        return title + text
    schema = schemas[endpoint.body.__name__]
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(_in_words(field))}</td></tr>"
        for name, field in schema["properties"].items()
        if field.get("description") != "Not honoured yet."
    )
    required = ", ".join(f"<code>{name}</code>" for name in schema.get("required", ())) or "nothing"
    return f"{title}{text}<p>Required: {required}.</p><table><tr><th>field<th>value</tr>{rows}</table>"


def _in_words(field: dict[str, Any]) -> str:
    """What a field may be, on one line."""
    if "anyOf" in field:
        kinds = [_in_words(kind) for kind in field["anyOf"] if kind.get("type") != "null"]
        return " or ".join(kinds)
    if "$ref" in field:
        return f"a {field['$ref'].rpartition('/')[2]}"
    if "enum" in field:
        return " | ".join(str(value) for value in field["enum"] if value is not None)
    if field.get("type") == "array":
        most = f", at most {field['maxItems']}" if "maxItems" in field else ""
        return f"list of: {_in_words(field.get('items', {}))}{most}"
    words = str(field.get("type", "anything"))
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None or high is not None:
        words += f" {'' if low is None else low} to {'' if high is None else high}"
    return words
