"""Items: the messages, calls and results that conversations and responses are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.window import Entry
from router.content.documents.documents import Documents
from router.core.bounded_json import TooMuchJson, decode_text
from router.core.messages import (
    CalledFunction,
    CalledTool,
    FileReference,
    MadeCall,
    Message,
    Part,
    image_part,
)
from router.core.origin import random_hex
from router.core.tenant import Caller
from router.request.decoding import invalid

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TYPES = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
)
_REASONING = "reasoning"
_TEXTS = ("input_text", "output_text", "text")
_ITEMS_A_TURN = 100
_PARTS_A_TURN = 500
_IMAGE = "input_image"
# What a template writes around a message, about.
_FRAME_TOKENS = 8


class GivenPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    image_url: str | None = None
    detail: str | None = None


class GivenItem(msgspec.Struct, frozen=True):
    """As a client sends it; an answer may be sent back as it came, so that fields it has more are let be."""

    type: str | None = None
    role: str | None = None
    content: str | list[GivenPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[GivenPart] | None = None
    namespace: str | None = None
    input: str | None = None
    summary: list[GivenPart] | None = None


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """As it is kept: what the API shows of it, and what a model reads.

    `text` holds what files said when they came, `parts` the same with images where they were, if there are
    any. `tokens` is the size of the text for the model named by `counted_by`.
    """

    id: str
    shown: dict[str, Any]
    role: str
    text: str = ""
    makes: str | None = None
    answers: str | None = None
    tokens: int | None = None
    counted_by: str = ""
    parts: list[Part] | None = None

    @property
    def images(self) -> int:
        return sum(part.image is not None for part in self.parts or ())

    @property
    def size_text(self) -> str:
        """The text that its size is counted by."""
        if self.makes is None:
            return self.text
        return f"{self.shown['name']} {self.called_with}"

    @property
    def called_with(self) -> str:
        """What a call hands over: arguments as JSON, or a custom tool's text."""
        text: str = self.shown["input" if self.shown["type"] == "custom_tool_call" else "arguments"]
        return text

    @property
    def is_thought(self) -> bool:
        return bool(self.shown["type"] == _REASONING)

    def entry(self, is_new: bool, image_tokens: int = 0) -> Entry:
        tokens = (self.tokens or 0) + self.images * image_tokens + _FRAME_TOKENS
        return Entry(self.role, tokens, is_new, self.makes, self.answers)


def new_id(prefix: str) -> str:
    return f"{prefix}_{random_hex(24)}"


def message_item(
    role: str,
    shown_parts: list[dict[str, Any]],
    text: str,
    item_id: str | None = None,
    parts: list[Part] | None = None,
) -> Item:
    item_id = item_id or new_id("msg")
    shown = {"id": item_id, "type": "message", "status": "completed", "role": role, "content": shown_parts}
    return Item(item_id, shown, _ROLES[role], text, parts=parts)


def call_item(
    call_id: str, name: str, arguments: str, namespace: str | None = None, is_custom: bool = False
) -> Item:
    """A call of a function, or of a custom tool, whose `arguments` are the text that it takes."""
    item_id = new_id("ctc" if is_custom else "fc")
    shown: dict[str, Any] = {
        "id": item_id,
        "type": "custom_tool_call" if is_custom else "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": name,
        "input" if is_custom else "arguments": arguments,
    }
    if namespace is not None:
        shown["namespace"] = namespace
    return Item(item_id, shown, "assistant", makes=call_id)


def reasoning_item(text: str, is_summary: bool = False, item_id: str | None = None) -> Item:
    """What a model thought before it spoke; as its own summary, where one was asked for."""
    item_id = item_id or new_id("rs")
    part = {"type": "summary_text" if is_summary else "reasoning_text", "text": text}
    shown = {
        "id": item_id,
        "type": _REASONING,
        "status": "completed",
        "summary": [part] if is_summary else [],
        "content": [] if is_summary else [part],
    }
    return Item(item_id, shown, "assistant", text)


def flat_name(namespace: str | None, name: str) -> str:
    """A tool's name as a model knows it, which knows no namespaces."""
    return name if namespace is None else f"{namespace.removesuffix('__')}__{name}"


def text_part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


async def read_items(
    given: str | Sequence[GivenItem], where: str, caller: Caller, documents: Documents
) -> list[Item]:
    """Checked, with ids of their own and the text of their files."""
    if isinstance(given, str):
        return [message_item("user", [text_part("user", given)], given)]
    documents.check_count(sum(map(_files, given)), where)
    items = []
    for index, item in enumerate(given):
        if index % _ITEMS_A_TURN == _ITEMS_A_TURN - 1:
            await asyncio.sleep(0)  # others go on meanwhile
        items.append(await _Reader(f"{where}[{index}]", caller, documents).read(item))
    return items


def _files(item: GivenItem) -> int:
    lists = (each for each in (item.content, item.output) if isinstance(each, list))
    return sum(part.type == "input_file" for parts in lists for part in parts)


def check_results(history: Sequence[Item], new: Sequence[Item], where: str) -> None:
    """A result without its call would tell a model nothing."""
    made = {item.makes for item in (*history, *new)}
    for index, item in enumerate(new):
        if item.answers is not None and item.answers not in made:
            place = f"{where}[{index}].call_id"
            raise invalid(f"{place}: there is no function_call with this call_id", place)


class _Reader:
    """Reads one item; `where` is its place in the request, which errors name."""

    def __init__(self, where: str, caller: Caller, documents: Documents) -> None:
        self._where = where
        self._caller = caller
        self._documents = documents

    async def read(self, item: GivenItem) -> Item:
        kind = item.type or "message"
        if kind == "message":
            return await self._message(item)
        if kind == "function_call":
            return self._call(item)
        if kind == "custom_tool_call":
            return self._custom_call(item)
        if kind in ("function_call_output", "custom_tool_call_output"):
            return await self._result(item, kind)
        if kind == _REASONING:
            content = item.content if isinstance(item.content, list) else []
            texts = [part.text or "" for part in content or item.summary or ()]
            return reasoning_item("\n".join(texts), is_summary=not content)
        shown = kind if kind.isidentifier() and len(kind) <= 64 else "this type"
        message = f"{self._where}.type: {shown} is not supported; allowed: {', '.join(_TYPES)}"
        raise InflightError(ErrorKind.UNSUPPORTED, message, f"{self._where}.type")

    async def _message(self, item: GivenItem) -> Item:
        role = item.role or ""
        if role not in _ROLES:
            raise self._invalid("role", f"expected one of {', '.join(_ROLES)}")
        shown, parts = await self._parts(item.content, "content", role)
        has_images = any(part.image is not None for part in parts)
        return message_item(role, shown, _text_of(parts), parts=parts if has_images else None)

    def _call(self, item: GivenItem) -> Item:
        if not item.call_id or not item.name or item.arguments is None:
            raise self._invalid("", "a function_call needs call_id, name and arguments")
        try:
            decode_text(item.arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            raise self._invalid("arguments", "expected JSON") from None
        except TooMuchJson as error:
            raise self._invalid("arguments", str(error)) from None
        return call_item(item.call_id, item.name, item.arguments, item.namespace)

    def _custom_call(self, item: GivenItem) -> Item:
        if not item.call_id or not item.name or item.input is None:
            raise self._invalid("", "a custom_tool_call needs call_id, name and input")
        return call_item(item.call_id, item.name, item.input, item.namespace, is_custom=True)

    async def _result(self, item: GivenItem, kind: str) -> Item:
        if not item.call_id:
            raise self._invalid("call_id", "expected the call_id of a function_call")
        parts, read = await self._parts(item.output, "output", "tool")
        shown: dict[str, Any] = {
            "id": new_id("fco"),
            "type": kind,
            "status": "completed",
            "call_id": item.call_id,
            "output": item.output if isinstance(item.output, str) else parts,
        }
        return Item(shown["id"], shown, "tool", _text_of(read), answers=item.call_id)

    async def _parts(
        self, content: str | list[GivenPart] | None, field: str, role: str
    ) -> tuple[list[dict[str, Any]], list[Part]]:
        """As the API shows them, and as a model reads them."""
        if isinstance(content, str):
            return [text_part(role, content)], [Part("text", content)]
        if content is None:
            raise self._invalid(field, "expected a string or a list of parts")
        parts, read = [], []
        for position, part in enumerate(content):
            if position % _PARTS_A_TURN == _PARTS_A_TURN - 1:
                await asyncio.sleep(0)
            shown, as_read = await self._part(part, f"{self._where}.{field}[{position}]", role)
            parts.append(shown)
            read.append(as_read)
        return parts, read

    async def _part(self, part: GivenPart, where: str, role: str) -> tuple[dict[str, Any], Part]:
        if part.type in _TEXTS or part.type == "refusal":
            text = part.refusal if part.type == "refusal" else part.text
            if text is None:
                raise invalid(f"{where}.text: expected a string", f"{where}.text")
            return text_part(role, text), Part("text", text)
        if part.type == "input_file":
            return await self._file(part, where)
        if part.type == _IMAGE and role == "user":
            if (part.image_url is None) == (part.file_id is None):
                raise invalid(f"{where}: give either image_url or file_id", where)
            shown = {"type": _IMAGE, "file_id": part.file_id, "detail": part.detail or "auto"}
            return shown, image_part(part.image_url, part.file_id)  # its data is not shown again
        kind = part.type if part.type.isidentifier() and len(part.type) <= 64 else "this type"
        allowed = "input_text, output_text, input_file, and input_image of a user"
        message = f"{where}.type: {kind} is not supported here; allowed: {allowed}"
        raise InflightError(ErrorKind.UNSUPPORTED, message, f"{where}.type")

    async def _file(self, part: GivenPart, where: str) -> tuple[dict[str, Any], Part]:
        if part.file_url is not None:
            message = f"{where}.file_url: files are not fetched from URLs; send file_id or file_data"
            raise InflightError(ErrorKind.UNSUPPORTED, message, f"{where}.file_url")
        reference = FileReference(part.file_id, part.file_data, part.filename)
        document = await self._documents.read(reference, self._caller, where)
        # The data of a file is not kept beside its text.
        shown = {"type": "input_file", "file_id": part.file_id, "filename": document.name}
        return shown, Part("text", document.rendered())

    def _invalid(self, field: str, what: str) -> InflightError:
        where = f"{self._where}.{field}" if field else self._where
        return invalid(f"{where}: {what}", where)


def _text_of(parts: Sequence[Part]) -> str:
    return "\n".join(part.text for part in parts if part.text is not None)


def as_messages(items: Sequence[Item], instructions: str | None) -> list[Message]:
    """As the chat path takes them: what the assistant thinks, says and calls in one breath is one message.

    Instructions and the system messages right behind them are one message too: templates expect no more.
    """
    messages = [Message("system", instructions)] if instructions else []
    thought: str | None = None
    for item in items:
        last = messages[-1] if messages else None
        if item.is_thought:
            thought = item.text or None
            continue
        if item.makes is not None:
            call = _made_call(item, item.makes)
            if last is not None and last.role == "assistant":
                messages[-1] = msgspec.structs.replace(last, tool_calls=[*(last.tool_calls or ()), call])
            else:
                messages.append(Message("assistant", tool_calls=[call], reasoning_content=thought))
        elif item.role == "system" and len(messages) == 1 and last is not None and last.role == "system":
            messages[0] = Message("system", f"{last.content}\n\n{item.text}")
        else:
            said = thought if item.role == "assistant" else None
            content = item.parts or item.text
            messages.append(Message(item.role, content, tool_call_id=item.answers, reasoning_content=said))
        thought = None
    return messages


def _made_call(item: Item, call_id: str) -> MadeCall:
    shown = item.shown
    name = flat_name(shown.get("namespace"), shown["name"])
    if shown["type"] == "custom_tool_call":
        return MadeCall(call_id, type="custom", custom=CalledTool(name, item.called_with))
    return MadeCall(call_id, CalledFunction(name, item.called_with))
