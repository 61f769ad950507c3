"""GET /docs: the description of the API as a page."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from router.html_page import html_page, link, table

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_HONOURED = "Not supported yet."
_METHODS = ("get", "post", "put", "patch", "delete")


def docs_page(document: dict[str, Any]) -> bytes:
    """Made of the same description that programs read."""
    groups: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method in filter(methods.__contains__, _METHODS):
            groups.setdefault(_group(path), []).append((method.upper(), path, methods[method]))
    contents = "".join(f"<li>{link('#' + name, name)}</li>" for name in groups)
    parts = "".join(
        f'<h2 id="{html.escape(name)}">{html.escape(name)}</h2>{"".join(map(_operation, operations))}'
        for name, operations in groups.items()
    )
    schemas = "".join(_schemas(document["components"]["schemas"]))
    intro = (
        "<p>An OpenAI-compatible API: point a client's base URL at <code>/v1</code>; clients of Anthropic "
        "and Ollama take this address itself. For programs: "
        f"{link('/openapi.json')}. What is served: {link('/')}.</p>"
    )
    body = f'{intro}<ul>{contents}<li>{link("#bodies", "bodies")}</li></ul>{parts}<h2 id="bodies">Bodies</h2>'
    return html_page("Inflight", body + schemas)


def _group(path: str) -> str:
    """What the first words of a path name: `/v1/responses`, `/admin/releases`, `/api`."""
    parts = path.split("/")
    return "/".join(parts[:3]) if parts[1] in ("v1", "admin") else "/".join(parts[:2])


def _operation(given: tuple[str, str, dict[str, Any]]) -> str:
    method, path, operation = given
    words = ". ".join(filter(None, (operation["summary"], operation.get("description", "").rstrip("."))))
    rows = [
        (_code(each["name"]), each["in"], "yes" if each["required"] else "", in_words(each["schema"]))
        for each in operation.get("parameters", ())
    ]
    body = operation.get("requestBody")
    takes = "".join(f"<p>Takes {_kinds(body['content'])}.</p>") if body else ""
    gives = [answer["content"] for status, answer in operation["responses"].items() if status != "default"]
    return (
        f"<h3>{_code(f'{method} {path}')}</h3><p>{_in_code(words)}.</p>{takes}"
        f"<p>Answers with {' or '.join(map(_kinds, gives))}.</p>"
        f"{table(('parameter', 'in', 'required', 'value'), rows)}"
    )


def _kinds(content: dict[str, Any]) -> str:
    return " or ".join(
        f"{in_words(found['schema'])} ({html.escape(kind)})"
        if "$ref" in found["schema"]
        else html.escape(kind)
        for kind, found in content.items()
    )


def _schemas(schemas: dict[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        required = schema.get("required", ())
        rows = [
            (_code(field), "yes" if field in required else "", in_words(value))
            for field, value in schema.get("properties", {}).items()
            if value.get("description") != _NOT_HONOURED
        ]
        words = _in_code(schema.get("description", ""))
        shape = table(("field", "required", "value"), rows) if rows else f"<p>{in_words(schema)}</p>"
        yield f'<h3 id="{html.escape(name)}">{_code(name)}</h3><p>{words}</p>{shape}'


def in_words(field: dict[str, Any]) -> str:
    """What a value may be, as HTML on one line."""
    if "anyOf" in field:
        return " or ".join(in_words(kind) for kind in field["anyOf"] if kind.get("type") != "null")
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return link(f"#{name}", name)
    if "const" in field:
        return _code(field["const"])
    if "enum" in field:
        return " | ".join(_code(value) for value in field["enum"] if value is not None)
    kinds = field.get("type", "anything")
    words = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    if words == "array":
        words = f"list of: {in_words(field.get('items', {}))}"
    elif words == "object" and isinstance(field.get("additionalProperties"), dict):
        words = f"object of: {in_words(field['additionalProperties'])}"
    else:
        words = html.escape(words)
    return ", ".join([words, *_bounds(field)])


def _bounds(field: dict[str, Any]) -> Iterator[str]:
    pairs = {
        "": ("minimum", "maximum"),
        " characters": ("minLength", "maxLength"),
        " entries": ("minItems", "maxItems"),
        " pairs": ("minProperties", "maxProperties"),
    }
    for unit, (lowest, highest) in pairs.items():
        low, high = field.get(lowest), field.get(highest)
        if low is not None and high is not None:
            yield f"{low:,} to {high:,}{unit}"
        elif low is not None:
            yield f"at least {low:,}{unit}"
        elif high is not None:
            yield f"at most {high:,}{unit}"
    if "exclusiveMinimum" in field:
        yield f"more than {field['exclusiveMinimum']:,}"
    if "exclusiveMaximum" in field:
        yield f"less than {field['exclusiveMaximum']:,}"
    if "pattern" in field:
        yield f"as {_code(field['pattern'])}"


def _code(text: Any) -> str:
    return f"<code>{html.escape(str(text))}</code>"


def _in_code(text: str) -> str:
    """With what stands between backticks as code."""
    return "".join(
        _code(part) if index % 2 else html.escape(part) for index, part in enumerate(text.split("`"))
    )
