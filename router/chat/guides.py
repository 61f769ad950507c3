"""What an answer must be: a schema, a grammar, one of some texts, or a call of a tool."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from router.chat.tools import forced, forced_field, forced_grammar, forced_schema
from router.request.decoding import invalid

if TYPE_CHECKING:
    from router.chat.bodies import ChatBody, Options

# What means something in a regular expression.
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
_ANY_OBJECT = '{"type":"object"}'


class Demand(NamedTuple):
    """A guide as the engine knows it, and the field that asks for it."""

    kind: str
    text: str
    field: str


def demand_of(body: Options) -> Demand | None:
    """Of the fields that chat and plain completions share; at most one of them asks for something."""
    given = {f"guided_{kind}": (kind, getattr(body, f"guided_{kind}")) for kind in _GUIDED}
    if body.structured_outputs is not None:
        outputs = msgspec.structs.asdict(body.structured_outputs)
        given |= {f"structured_outputs.{kind}": (kind, value) for kind, value in outputs.items()}
    found = {field: asked for field, asked in given.items() if asked[1] not in (None, False)}
    if len(found) > 1:
        first, second, *_ = found
        raise invalid(f"{second}: an answer cannot follow both {first} and {second}", second)
    for field, (kind, value) in found.items():
        return Demand(*_READERS[kind](value), field)
    return None


def _schema(schema: dict[str, Any] | str) -> tuple[str, str]:
    return "json_schema", schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()


_GUIDED = ("json", "regex", "choice", "grammar")
_READERS: dict[str, Callable[[Any], tuple[str, str]]] = {
    "json": _schema,
    "regex": lambda pattern: ("regex", pattern),
    "choice": lambda texts: ("regex", "|".join(_META.sub(r"\\\g<0>", text) for text in texts)),
    "grammar": lambda grammar: ("ebnf_grammar", grammar),
    "json_object": lambda wanted: ("json_schema", _ANY_OBJECT),
}


def chat_demand(body: ChatBody) -> Demand | None:
    """The same for a chat, which has OpenAI's own fields beside them."""
    asked = demand_of(body)
    own = _forced_call(body) if forced(body) else _response_format(body)
    if asked is not None and own is not None:
        text = f"{asked.field}: an answer cannot follow both it and {own.field}"
        raise invalid(text, asked.field)
    return own or asked


def _response_format(body: ChatBody) -> Demand | None:
    form = body.response_format
    if form is None or form.type == "text":
        return None
    if form.json_schema is None:
        return Demand("json_schema", _ANY_OBJECT, "response_format")
    return Demand(*_schema(form.json_schema.schema), "response_format")


def _forced_call(body: ChatBody) -> Demand:
    grammar, field = forced_grammar(body), forced_field(body)
    if grammar is not None:
        return Demand("regex" if grammar.syntax == "regex" else "ebnf_grammar", grammar.definition, field)
    return Demand(*_schema(forced_schema(body) or {}), field)
