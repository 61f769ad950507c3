"""How models write tool calls, by the family that a chat template shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec

from router.core.xml_calls import FUNCTION, PARAMETER, Schemas, read_xml_calls


class WrittenCall(msgspec.Struct, frozen=True):
    """As models write it; its arguments leave as they are, not decoded and written anew."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()

    @property
    def arguments_text(self) -> str:
        """JSON of an object, as a rule; raises ValueError."""
        text = bytes(self.arguments or self.parameters).decode().strip()
        if text.startswith('"'):  # some write the object as a text
            text = msgspec.json.decode(text, type=str)
        return "{}" if text in ("", "null") else text


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Calls stand between one of `openings` and `closing`, or up to the answer's end where that is empty.

    An answer whose first character is `bare` is calls as a whole, without an opening. `read` gives the calls
    of one such stretch, marks included, by the schemas of the tools, and raises ValueError where it is none.
    With `is_special`, marks are special tokens, which are shown only on request.
    """

    openings: tuple[str, ...]
    closing: str
    read: Callable[[str, Schemas], Sequence[WrittenCall]]
    bare: str = ""
    is_special: bool = False

    @property
    def opening(self) -> re.Pattern[str]:
        """Finds the next of the openings."""
        return _any_of(self.openings)


@cache
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)))


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON = "<|python_tag|>"
_CALLS = "[TOOL_CALLS]"
_one = msgspec.json.Decoder(WrittenCall)
_several = msgspec.json.Decoder(list[WrittenCall])
_named = re.compile(r"\s*([A-Za-z0-9_.-]+)(?:\[CALL_ID\][A-Za-z0-9]*)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)


def _hermes(text: str, _: Schemas) -> list[WrittenCall]:
    return [_one.decode(text.removeprefix(_OPEN).removesuffix(_CLOSE))]


def _llama(text: str, _: Schemas) -> list[WrittenCall]:
    """One object after another, with semicolons between them."""
    rest, calls = text.strip().removeprefix(_PYTHON).strip(), []
    scan = json.JSONDecoder().raw_decode
    while rest:
        _, end = scan(rest)
        calls.append(_one.decode(rest[:end]))
        rest = rest[end:].lstrip("; \n\t")
    return calls


def _mistral(text: str, _: Schemas) -> list[WrittenCall]:
    """A list of objects, or each call's name and arguments behind a mark of their own."""
    text = text.strip().removeprefix(_CALLS).strip()
    if text.startswith("["):
        return _several.decode(text)
    calls = []
    for each in text.split(_CALLS):
        found = _named.fullmatch(each)
        if found is None:
            raise ValueError("no call")
        msgspec.json.decode(found[2])
        calls.append(WrittenCall(found[1], msgspec.Raw(found[2].strip().encode())))
    return calls


def _xml(text: str, schemas: Schemas) -> list[WrittenCall]:
    calls = read_xml_calls(text, schemas)
    return [WrittenCall(name, msgspec.Raw(msgspec.json.encode(arguments))) for name, arguments in calls]


HERMES = CallFormat((_OPEN,), _CLOSE, _hermes)
LLAMA = CallFormat((_PYTHON,), "", _llama, bare="{", is_special=True)
MISTRAL = CallFormat((_CALLS,), "", _mistral, is_special=True)
# Models of this family often leave out the outer tag's beginning.
XML = CallFormat((_OPEN, FUNCTION), _CLOSE, _xml)
# What a template of the family has in it.
_SIGNS = (
    (MISTRAL, (_CALLS,)),
    (XML, (PARAMETER,)),
    (HERMES, (_OPEN,)),
    (LLAMA, (_PYTHON, '"parameters": dictionary of argument name')),
)


def format_of(template: str) -> CallFormat:
    """Hermes' for templates that show none: it is how other models are told to write."""
    for shown, signs in _SIGNS:
        if any(sign in template for sign in signs):
            return shown
    return HERMES


def written_call(name: str, arguments: object) -> str:
    """A call as a model wrote it, for the history of one whose template knows no tools."""
    call = msgspec.json.encode({"name": name, "arguments": arguments}).decode()
    return f"{_OPEN}\n{call}\n{_CLOSE}"
