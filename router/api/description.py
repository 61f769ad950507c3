"""GET /openapi.json and GET /docs: the API told by the same structs that check it."""

from __future__ import annotations

import html
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from router.api.bodies import MESSAGE_NEUTRAL, NEUTRAL
from router.api.errors import TRITON_PREFIX, respond_json
from router.api.routes import JSON, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.http.exchange import Exchange
    from router.record import Record

_REFERENCE = "#/components/schemas/{name}"


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_NUMBER: _Schema = {"type": "integer"}
_ANY: _Schema = {}
_USAGE = _object(prompt_tokens=_NUMBER, completion_tokens=_NUMBER, total_tokens=_NUMBER)
_FINISH = {"enum": ["stop", "length", "tool_calls", "content_filter"]}
_MODEL = _object(id=_TEXT, object={"const": "model"}, created=_NUMBER, owned_by=_TEXT)


def _completion(kind: str, **choice: Any) -> dict[str, Any]:
    choices = _array(_object(index=_NUMBER, **choice, finish_reason=_FINISH))
    return _object(
        id=_TEXT, object={"const": kind}, created=_NUMBER, model=_TEXT, choices=choices, usage=_USAGE
    )


_ANSWERS = {
    "ChatCompletion": _completion("chat.completion", message=_object(role=_TEXT, content=_ANY)),
    "Completion": _completion("text_completion", text=_TEXT),
    "Model": _MODEL,
    "ModelList": _object(object={"const": "list"}, data=_array(_MODEL)),
    "TritonError": _object(error=_TEXT),
    "TritonModels": _array(_object(name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT)),
    "Error": _object(error=_object(message=_TEXT, type=_TEXT, param=_ANY, code=_ANY)),
}


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    bodies = [route.body for route in routes if route.body is not None]
    _, schemas = msgspec.json.schema_components(bodies, ref_template=_REFERENCE)
    for name in ("ChatBody", "CompletionBody"):
        _narrow(schemas[name], NEUTRAL)
    _narrow(schemas["Message"], MESSAGE_NEUTRAL)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Inflight", "version": version("inflight")},
        "paths": paths,
        "components": {
            "schemas": {**schemas, **_ANSWERS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _narrow(schema: dict[str, Any], neutral: dict[str, tuple[Any, ...]]) -> None:
    """What is not honoured yet takes its neutral values and nothing else."""
    for name, values in neutral.items():
        if name in schema["properties"]:
            schema["properties"][name] = {"enum": [None, *values], "description": "Not honoured yet."}


def _operation(endpoint: Route) -> dict[str, Any]:
    content: dict[str, Any]
    if "/" in endpoint.answer:
        content = {endpoint.answer: {"schema": _TEXT}}
    else:
        known = endpoint.answer in _ANSWERS
        schema = {"$ref": _REFERENCE.format(name=endpoint.answer)} if known else {"type": "object"}
        content = {"application/json": {"schema": schema}}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": _TEXT}
    shape = "TritonError" if endpoint.path.startswith(TRITON_PREFIX) else "Error"
    problem = {"schema": {"$ref": _REFERENCE.format(name=shape)}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            "200": {"description": "The answer", "content": content},
            "default": {"description": "What is wrong", "content": {"application/json": problem}},
        },
    }
    if endpoint.body is not None:
        body = {"schema": {"$ref": _REFERENCE.format(name=endpoint.body.__name__)}}
        content = {endpoint.takes or JSON: body}
        operation["requestBody"] = {"required": True, "content": content}
    if endpoint.names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in endpoint.names
        ]
    if endpoint.scope is not None:
        operation["security"] = [{"key": []}]
        operation["description"] = f"A key needs the scope `{endpoint.scope.value}`."
    return operation


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
<p>An OpenAI-compatible API: point a client's base URL at <code>/v1</code>. For programs:
<code>/openapi.json</code>.</p>{sections}</body></html>"""


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
